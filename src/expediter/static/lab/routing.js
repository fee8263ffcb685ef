// The routing demo: what each way of choosing a replica does to chat traffic.

import { ask, Latest } from "./ask.js";
import { range } from "./controls.js";
import { bar, count, element, percent, seconds, short, times } from "./dom.js";
import { POLICIES } from "./words.js";

export const title = "Who has the notes?";
export const name = "Routing";
export const lead =
  "A model reads the whole conversation before it answers, and keeps notes of what it read. The next " +
  "message is quick if it reaches the replica that has the notes. Send everyone there, though, and that " +
  "replica drowns. Here are 20,000 chat requests, and what each way of choosing makes of them.";

export function groups(choices) {
  const policies = [...choices.fast, ...choices.real].map((key) => [key, ...POLICIES[key]]);
  return [
    { title: "Router", controls: [
      { key: "policy", label: "Routing policy", options: policies },
      { key: "form", label: "What is shared", options: [
        ["published", "Whole conversations", "As published: a conversation is one entry, found again even after it starts over."],
        ["blocks", "Blocks of text", "As in a real engine: text is cached in blocks, and a conversation that starts over is new text. Takes a second."],
      ] },
    ] },
    { title: "Fleet", controls: [
      { key: "replicas", label: "Replicas", stops: range(1, 32), show: count,
        hint: "Copies of the model. With more of them, a random one has your notes less often." },
      { key: "cache", label: "Cache per replica", show: (value) => `${short(value)} tokens`,
        stops: [10, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500, 600, 800, 1000].map((k) => k * 1000),
        hint: "How many tokens of notes fit in a replica's memory. When it is full, the oldest go." },
    ] },
    { title: "Traffic", controls: [
      { key: "conversations", label: "Conversations", show: count,
        stops: [10, 20, 50, 100, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000],
        hint: "How many people chat. Each has 500 to 20,000 tokens of history." },
      { key: "skew", label: "Popularity skew", stops: range(0, 2, 0.1), show: (value) => value.toFixed(1),
        hint: "0: everybody writes equally often. 1: few write most of the messages." },
      { key: "systems", label: "System prompts", stops: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32], show: count,
        hint: "Different instructions of 2,000 tokens that stand before every conversation." },
      { key: "rate", label: "Load", stops: range(1, 60), show: (value) => `${value} requests/s`,
        hint: "How fast requests come. Beyond what a replica can read, its queue grows without end." },
      { key: "seed", label: "Dice", stops: range(0, 30), show: count,
        hint: "Another number draws other requests of the same kind." },
    ] },
  ];
}

export class Panel {
  constructor({ state, choices, headline, results, status, problem }) {
    Object.assign(this, { state, choices, headline, results, status, problem });
    this.outcomes = new Map();
    this.setting = null;
    this.latest = new Latest((setting) => this.compute(setting));
    this.build();
  }

  build() {
    this.figures = element("dl", { class: "figures" });
    this.headline.replaceChildren(this.figures);
    this.rows = element("tbody");
    this.replicas = element("ol", { class: "columns" });
    this.mean = element("p", { class: "note" });
    this.own = element("h2", { text: "Prefill by replica" });
    this.results.replaceChildren(
      element("div", { class: "card" },
        element("h2", { text: "Token hit rate" }),
        element("table", { class: "policies" },
          element("caption", { class: "visually-hidden", text: "Every policy on the same requests" }),
          element("thead", {}, element("tr", {},
            ...["Policy", "Tokens cached", "Imbalance", "TTFT p50", "TTFT p95"].map(
              (text, index) => element("th", { scope: "col", text, class: index === 3 ? "wide" : null })))),
          this.rows),
        element("p", { class: "note", text:
          "Imbalance: the busiest replica's prefill over the mean; 1 is perfect. TTFT: the wait behind other " +
          "prompts on the replica, and the prompt's own prefill, at 0.1 ms for every token not found. " +
          "Decoding is left out of it. The upper five are the published demo's rules; the others are the " +
          "gateway's own code and see queues, first tokens and answers of 200 tokens." })),
      element("div", { class: "card" }, this.own, this.replicas, this.mean));
  }

  update() {
    const { policy, ...setting } = this.state.values;
    const key = JSON.stringify(setting);
    if (key !== this.setting) {
      this.setting = key;
      this.background?.abort();
      this.latest.ask(key);
    }
    this.show();
  }

  leave() {
    this.background?.abort();
    this.setting = null;
  }

  async compute(key) {
    const setting = JSON.parse(key);
    this.results.setAttribute("aria-busy", "true");
    try {
      const found = await ask("routing", setting);
      if (this.setting !== key) return;
      this.outcomes = new Map(found.map((outcome) => [outcome.policy, outcome]));
      this.problem(null);
      this.show();
      this.others(key, setting);
    } catch (error) {
      if (this.setting === key) this.problem(error);
    } finally {
      this.results.removeAttribute("aria-busy");
    }
  }

  // The gateway's own policies take up to seconds: one after the other, the chosen one first.
  async others(key, setting) {
    this.background?.abort();
    const { signal } = (this.background = new AbortController());
    const chosen = this.state.values.policy;
    const order = [...this.choices.real].sort((a, b) => (b === chosen) - (a === chosen));
    try {
      // A slider that is still moving asks for nothing here.
      await new Promise((resolve) => setTimeout(resolve, 400));
      for (const policy of order) {
        if (signal.aborted || this.setting !== key) return;
        const outcome = await ask("policy", { ...setting, policy }, signal);
        if (this.setting !== key) return;
        this.outcomes.set(policy, outcome);
        this.show();
      }
    } catch (error) {
      if (error.name !== "AbortError" && this.setting === key) this.problem(error);
    }
  }

  show() {
    const { policy } = this.state.values;
    const names = [...this.choices.fast, ...this.choices.real];
    this.rows.replaceChildren(...names.map((each) => this.row(each, each === policy)));
    const chosen = this.outcomes.get(policy);
    this.showHeadline(chosen, policy);
    this.showReplicas(chosen, policy);
  }

  row(policy, isChosen) {
    const outcome = this.outcomes.get(policy);
    const button = element("button", { type: "button", class: "plain", text: POLICIES[policy][0],
      "aria-pressed": String(isChosen), "data-policy": policy,
      onclick: () => {
        this.state.set({ policy });
        this.rows.querySelector(`[data-policy="${policy}"]`)?.focus();
      } });
    const head = element("th", { scope: "row" }, button);
    if (!outcome) {
      return element("tr", { class: isChosen ? "chosen" : null }, head,
        element("td", { colspan: 4, class: "pending", text: "computing…" }));
    }
    const overloaded = outcome.busy >= 1;
    const row = element("tr", { class: isChosen ? "chosen" : null, "data-row": policy }, head,
      element("td", { class: "rate" }, element("span", { class: "measured" },
        element("span", { class: "track" }, bar(outcome.hit_rate, "")),
        element("span", { text: percent(outcome.hit_rate) }))),
      element("td", { class: outcome.imbalance > 1.5 ? "warn" : null, text: times(outcome.imbalance) }),
      element("td", { class: "wide", text: seconds(outcome.ttft_p50) }),
      element("td", { class: overloaded ? "bad" : null, text: overloaded ? "overloaded" : seconds(outcome.ttft_p95) }));
    row.style.setProperty("--rate", String(outcome.hit_rate));
    return row;
  }

  showHeadline(outcome, policy) {
    const figure = (label, value, note) => element("div", {},
      element("dt", { text: label }), element("dd", { text: value }), element("dd", { class: "note", text: note }));
    const wait = !outcome ? "" : outcome.busy >= 1
      ? "a queue grows without end"
      : `busiest replica ${percent(outcome.busy)} busy`;
    this.figures.replaceChildren(
      figure("Token hit rate", outcome ? percent(outcome.hit_rate) : "…", POLICIES[policy]?.[0] ?? ""),
      figure("Imbalance", outcome ? times(outcome.imbalance) : "…", "busiest over mean"),
      figure("TTFT p95", outcome ? seconds(outcome.ttft_p95) : "…", wait));
    if (outcome) {
      this.status(`${POLICIES[policy][0]}: ${percent(outcome.hit_rate)} of tokens hit, ` +
        `imbalance ${times(outcome.imbalance)}, TTFT p95 ${seconds(outcome.ttft_p95)}`);
    }
  }

  showReplicas(outcome, policy) {
    this.own.textContent = `Prefill by replica, ${POLICIES[policy]?.[0] ?? policy}`;
    if (!outcome) return;
    const most = Math.max(...outcome.computed);
    const mean = outcome.computed.reduce((sum, tokens) => sum + tokens, 0) / outcome.computed.length;
    this.replicas.classList.toggle("many", outcome.computed.length > 12);
    this.replicas.replaceChildren(...outcome.computed.map((tokens, number) => {
      const column = element("span", { class: tokens === most ? "column most" : "column" });
      column.style.height = `${(100 * tokens) / most}%`;
      return element("li", { title: `replica ${number + 1}: ${count(tokens)} tokens` },
        element("span", { class: "visually-hidden", text: `replica ${number + 1}: ${count(tokens)} tokens` }),
        element("span", { class: "shaft", "aria-hidden": "true" }, column),
        element("span", { class: "number", "aria-hidden": "true", text: String(number + 1) }));
    }));
    this.replicas.style.setProperty("--mean", String(mean / most));
    this.mean.textContent = `Tokens computed in 15,000 requests: ${short(mean)} a replica in the mean ` +
      `(dashed), ${short(most)} at the busiest.`;
  }
}
