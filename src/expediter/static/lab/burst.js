// The hot prefix: a simulated burst, played back as queues at workers.

import { ask } from "./ask.js";
import { Curves } from "./charts.js";
import { Player } from "./player.js";
import { bar, count, element, percent, seconds, times } from "./dom.js";
import { range } from "./controls.js";

export const title = "When everybody wants the same";
export const name = "Hot prefix";
export const lead =
  "Three kinds of requests share one long system prompt. A, from a popular tool, comes eighty times in a " +
  "hundred; B and C come rarely. A router that only looks for the longest match sends all of them where A " +
  "is cached, and seven workers idle. Play the burst under each policy, and watch who waits.";

export const LOCAL = { at: -1 }; // seconds into the film; -1 is when most requests wait

const CLASSES = ["A", "B", "C"];
const ABOUT = { A: "popular tool", B: "rare customers", C: "system prompt only" };

export function groups() {
  return [
    { title: "Router and workers", controls: [
      { key: "policy", label: "Routing policy", options: [
        ["longest-match", "Longest match only", "Where most of the prompt is cached, however long the queue is."],
        ["cache-aware", "Cache-aware", "The longest match, unless that worker has over 1.2 times the mean of work, and more than its head start."],
        ["preble", "Preble E2", "Weighs what a match saves against the work at its worker; copies a prefix that got hot."],
        ["slo", "SLO (ours)", "Predicts what the request costs itself and others at each worker. The gateway's default."],
      ] },
      { key: "queue", label: "Order of a queue", options: [
        ["fcfs", "First come, first served", "Whoever came first is next."],
        ["prefix-quotas", "Fair by prefix (Preble)", "Groups by how much is cached get shares of every batch, so nobody starves."],
      ] },
    ] },
    { title: "Burst", controls: [
      { key: "rate", label: "Load", stops: range(20, 200, 5), show: (value) => `${value} requests/s`,
        hint: "All three classes together. One worker alone manages about 60 a second." },
      { key: "seconds", label: "Length", stops: range(4, 30, 2), show: (value) => `${value} s`,
        hint: "How long new requests come." },
      { key: "seed", label: "Dice", stops: range(0, 30), show: count,
        hint: "Another number draws other arrivals of the same kind." },
    ] },
  ];
}

export class Panel {
  constructor({ state, headline, results, status, problem }) {
    Object.assign(this, { state, headline, results, status, problem });
    this.key = null;
    this.film = null;
    this.player = new Player({
      onframe: (frame) => this.showFrame(frame),
      onrest: (time, settled) => state.set({ at: time }, { settled }),
    });
    this.build();
  }

  build() {
    this.figures = element("dl", { class: "figures" });
    this.headline.replaceChildren(this.figures, this.player.made);
    this.workers = element("ol", { class: "workers" });
    this.rows = element("tbody");
    const plot = element("div", { class: "plot", role: "img", "aria-label":
      "Requests that wait, by class, over the length of the burst" });
    const keys = CLASSES.map((label) => element("span", { class: `key ${label.toLowerCase()}`, text: `${label}: ${ABOUT[label]}` }));
    this.results.replaceChildren(
      element("div", { class: "card" }, element("h2", { text: "Queues at the workers" }),
        element("p", { class: "legend" }, ...keys), this.workers,
        element("p", { class: "note", text: "Thick: requests that wait. Thin: requests in the batch, being read or answered." })),
      element("div", { class: "card" }, element("h2", { text: "Who waits, over time" }), plot,
        element("p", { class: "note", text: "Click to go to a moment." })),
      element("div", { class: "card" }, element("h2", { text: "Time to first token, by class" }),
        element("table", {}, element("caption", { class: "visually-hidden", text: "Time to first token and waiting, by class" }),
          element("thead", {}, element("tr", {},
            ...["Class", "Requests", "TTFT p50", "TTFT p99", "Waiting p99", "Within 0.5 s"].map(
              (text, index) => element("th", { scope: "col", text, class: [1, 4].includes(index) ? "wide" : null })))), this.rows),
        element("p", { class: "note", text:
          "Simulated: the gateway's router, the workers' scheduler and caches, and measured step times of a 70B " +
          "model on 8 H100 a worker, on a clock that jumps." })));
    this.curves = new Curves(plot, {
      height: 180, marker: () => this.player.time, onpick: (time) => this.player.seek(time, true),
      series: CLASSES.map((label) => ({ label, colour: `--class-${label.toLowerCase()}` })),
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(5, high)] } },
      axes: [{ size: 32, values: (_, ticks) => ticks.map((tick) => `${tick} s`) }, { size: 48 }],
    });
  }

  update() {
    const { at, ...question } = this.state.values;
    const key = JSON.stringify(question);
    if (key === this.key) {
      if (this.film && at !== this.player.time) this.player.seek(this.moment(at), false);
      return;
    }
    this.key = key;
    this.asking?.abort();
    this.player.stop();
    clearTimeout(this.soon);
    this.results.setAttribute("aria-busy", "true");
    // A slider that is still moving starts no simulation.
    this.soon = setTimeout(() => this.simulate(key, question), this.film ? 250 : 0);
  }

  leave() {
    this.asking?.abort();
    clearTimeout(this.soon);
    this.player.stop();
    this.curves.close();
    this.results.removeAttribute("aria-busy");
  }

  async simulate(key, question) {
    this.asking = new AbortController();
    this.player.say("Simulating…");
    try {
      const film = await ask("burst", question, this.asking.signal);
      if (this.key !== key) return;
      this.problem(null);
      this.show(film);
    } catch (error) {
      if (error.name === "AbortError" || this.key !== key) return;
      this.player.say("");
      this.problem(error);
    }
    this.results.removeAttribute("aria-busy");
  }

  show(film) {
    this.film = film;
    const frames = film.times.map((_, frame) => frame);
    this.totals = CLASSES.map((_, kind) => frames.map(
      (frame) => film.waiting.reduce((sum, worker) => sum + worker[kind][frame], 0)));
    this.most = Math.max(20, ...film.waiting.flatMap((worker) => frames.map((frame) => total(worker, frame))),
      ...film.running.flatMap((worker) => frames.map((frame) => total(worker, frame))));
    this.curves.show([film.times, ...this.totals]);
    this.rows.replaceChildren(...film.classes.map((each) => element("tr", { "data-class": each.label },
      element("th", { scope: "row" }, element("span", { class: `key ${each.label.toLowerCase()}`, text: each.label })),
      element("td", { class: "wide", text: count(each.num_requests) }), element("td", { text: seconds(each.ttft_p50) }),
      element("td", { class: each.ttft_p99 > 0.5 ? "bad" : null, text: seconds(each.ttft_p99) }),
      element("td", { class: "wide", text: seconds(each.queueing_p99) }), element("td", { text: percent(each.in_time) }))));
    const worst = Math.max(...film.classes.map((each) => each.ttft_p99));
    const inTime = film.classes.reduce((sum, each) => sum + each.in_time * each.num_requests, 0) /
      film.classes.reduce((sum, each) => sum + each.num_requests, 0);
    const figure = (label, value, note) => element("div", {},
      element("dt", { text: label }), element("dd", { text: value }), element("dd", { class: "note", text: note }));
    this.figures.replaceChildren(
      figure("Within 0.5 s", percent(inTime), "of all first tokens"),
      figure("Worst p99", seconds(worst), "of a class's TTFT"),
      figure("Imbalance", times(film.imbalance), "prefill, busiest over mean"));
    this.status(`${percent(inTime)} of first tokens within half a second; worst p99 ${seconds(worst)}`);
    this.player.load(film.times, this.moment(this.state.values.at));
  }

  // A moment of the address in this film.
  moment(at) {
    if (typeof at === "number" && at >= 0) return at;
    const sums = this.film.times.map((_, frame) => this.totals.reduce((sum, row) => sum + row[frame], 0));
    return this.film.times[sums.indexOf(Math.max(...sums))];
  }

  showFrame(frame) {
    const { waiting, running } = this.film;
    if (this.workers.childElementCount !== waiting.length) {
      this.workers.replaceChildren(...waiting.map((_, number) => element("li", {},
        element("span", { class: "who", text: `worker ${number + 1}` }),
        element("span", { class: "tracks", "aria-hidden": "true" },
          element("span", { class: "track" }, ...CLASSES.map((label) => bar(0, label.toLowerCase()))),
          element("span", { class: "track thin" }, ...CLASSES.map((label) => bar(0, label.toLowerCase())))),
        element("span", { class: "how-many" }))));
    }
    [...this.workers.children].forEach((row, number) => {
      const [thick, thin] = row.querySelectorAll(".track");
      this.fill(thick, waiting[number], frame);
      this.fill(thin, running[number], frame);
      row.querySelector(".how-many").textContent =
        `${count(total(waiting[number], frame))} wait, ${count(total(running[number], frame))} run`;
    });
    this.curves.redraw();
  }

  fill(track, worker, frame) {
    [...track.children].forEach((part, kind) => {
      part.style.width = `${(100 * worker[kind][frame]) / this.most}%`;
    });
  }
}

const total = (worker, frame) => worker.reduce((sum, row) => sum + row[frame], 0);
