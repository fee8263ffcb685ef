// Disaggregation: what moving a prompt's notes costs, and how many replicas each stage needs.

import { ask, Latest } from "./ask.js";
import { Curves } from "./charts.js";
import { range } from "./controls.js";
import { bar, bytes, count, element, percent, seconds, short } from "./dom.js";
import { LINKS } from "./words.js";

export const title = "Read here, write there";
export const name = "Disaggregation";
export const lead =
  "Reading a prompt keeps a GPU's arithmetic busy; writing an answer keeps its memory busy. Some fleets " +
  "give each to replicas of its own. Then the notes of every prompt have to be driven across. How heavy " +
  "are they, how long does the drive take, and how many replicas of each kind do you need?";

const PRECISIONS = {
  float16: "16 bits for each number, the usual.", bfloat16: "16 bits, another rounding; as heavy as float16.",
  fp8: "8 bits: half as heavy.", float32: "32 bits: twice as heavy.",
};

export function groups(choices) {
  const links = choices.links.map((link) => [link.name, LINKS[link.name] ?? link.name, `${link.source}; one way counts.`]);
  return [
    { title: "What moves", controls: [
      { key: "prompt", label: "Prompt length", show: (value) => `${count(value)} tokens`,
        stops: [100, 250, 500, 1000, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 32000, 64000, 100000, 128000],
        hint: "All of it was read by one replica, and the other needs the notes on all of it." },
      { key: "model", label: "Model", options: choices.models.map((key) => [key, key]),
        hint: "Layers and heads decide how many bytes of notes a token takes." },
      { key: "dtype", label: "Precision of the notes",
        options: choices.dtypes.map((key) => [key, key, PRECISIONS[key] ?? ""]) },
    ] },
    { title: "What it moves over", controls: [
      { key: "link", label: "Link", options: links },
      { key: "tp", label: "GPUs of a replica", stops: [1, 2, 4, 8, 16], show: count,
        hint: "Tensor parallel: each GPU has a part of every layer, so each sends its part." },
      { key: "cards", label: "Sent by", options: [
        ["each", "every GPU over its own link", "All at once, in equal parts."],
        ["one", "one link for all", "As if the whole replica had one card."],
      ] },
    ] },
    { title: "Speed", controls: [
      { key: "cost", label: "Time of a step", options: [
        ["linear", "worked example", "0.1 ms a prompt token; 20 + 0.2 B ms a step that writes for B requests, whatever the model."],
        ["roofline", "from the GPU's datasheet", "The model's arithmetic and bytes on this GPU, at the shares of the datasheet that kernels reach."],
      ] },
      { key: "gpu", label: "GPU", options: choices.gpus.map((key) => [key, key.toUpperCase()]),
        when: (values) => values.cost === "roofline", hint: "Speed of arithmetic and of memory." },
    ] },
    { title: "Traffic", controls: [
      { key: "rate", label: "Load", stops: [1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 200], show: (value) => `${value} requests/s`,
        hint: "Requests that come in a second, over the whole fleet." },
      { key: "mean", label: "Mean prompt", show: (value) => `${count(value)} tokens`,
        stops: [100, 250, 500, 1000, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 32000, 64000, 128000],
        hint: "How long prompts are in the mean. The pools are sized for these." },
      { key: "output", label: "Answer length", stops: [1, 10, 50, 100, 200, 300, 500, 1000, 2000, 4000], show: (value) => `${count(value)} tokens`,
        hint: "Every token of an answer is a step of its replica." },
      { key: "tpot", label: "Time per written token", stops: [21, 22, 25, 30, 35, 40, 50, 60, 80, 100, 150, 200], show: (value) => `${value} ms`,
        hint: "The target: 40 ms are 25 tokens a second. The slower, the more requests share a step." },
      { key: "hits", label: "Hit rate of prefill", stops: [...range(0, 95, 5), 83, 99].sort((a, b) => a - b), show: (value) => `${value} %`,
        hint: "The share of prompt tokens whose notes the prefill replica had already." },
    ] },
  ];
}

export class Panel {
  constructor({ state, headline, results, status, problem }) {
    Object.assign(this, { state, headline, results, status, problem });
    this.latest = new Latest((values) => this.compute(values));
    this.build();
  }

  build() {
    this.figures = element("dl", { class: "figures" });
    this.headline.replaceChildren(this.figures);
    this.strip = element("div", { class: "strip" });
    this.sum = element("p", { class: "note" });
    this.pools = element("div", { class: "pools" });
    this.sizing = element("p", { class: "note" });
    this.rows = element("tbody");
    const plot = element("div", { class: "plot", role: "img", "aria-label":
      "Prefill and transfer time by prompt length; both grow with it, and their ratio stays" });
    this.results.replaceChildren(
      element("div", { class: "card" }, element("h2", { text: "Before the first token" }), this.strip, this.sum),
      element("div", { class: "card" }, element("h2", { text: "Replicas to keep up" }), this.pools, this.sizing),
      element("div", { class: "card" }, element("h2", { text: "By prompt length" }), plot,
        element("p", { class: "legend" }, element("span", { class: "key a", text: "prefill" }),
          element("span", { class: "key b", text: "transfer" }), "both scales are logarithmic; dashed: your prompt")),
      element("div", { class: "card" }, element("h2", { text: "Over every link" }),
        element("table", {}, element("caption", { class: "visually-hidden", text: "Transfer time over each kind of link" }),
          element("thead", {}, element("tr", {}, ...["Link", "One way", "Time", "Of prefill"].map(
            (text) => element("th", { scope: "col", text })))), this.rows)));
    this.curves = new Curves(plot, {
      height: 240, marker: () => this.prompt,
      series: [{ label: "prefill", colour: "--class-a" }, { label: "transfer", colour: "--class-b" }],
      scales: { x: { time: false, distr: 3, range: [1000, 128000] }, y: { distr: 3 } },
      axes: [
        { isLog: true, size: 32, values: (_, ticks) => ticks.map((tick) => tick === null ? "" : short(tick)) },
        { isLog: true, size: 64, values: (_, ticks) => ticks.map((tick) => tick === null ? "" : seconds(tick)) },
      ],
    });
  }

  update() {
    this.latest.ask({ ...this.state.values });
  }

  leave() {
    this.curves.close();
  }

  async compute(values) {
    try {
      const found = await ask("transfer", values);
      this.problem(null);
      this.show(found, values);
    } catch (error) {
      this.problem(error);
    }
  }

  show(found, values) {
    const { chosen } = found;
    const figure = (label, value, note) => element("div", {},
      element("dt", { text: label }), element("dd", { text: value }), element("dd", { class: "note", text: note }));
    this.figures.replaceChildren(
      figure("Notes to move", bytes(found.kv_bytes), `${count(found.kv_bytes_per_token / 1024)} KiB a token`),
      figure("Transfer", seconds(chosen.seconds), `${found.num_links} × ${bytes(chosen.bytes_per_second)}/s`),
      figure("Of its prefill", percent(chosen.share_of_prefill), `prefill takes ${seconds(found.prefill_seconds)}`));
    const total = found.prefill_seconds + chosen.seconds;
    this.strip.replaceChildren(bar(found.prefill_seconds / total, "a"), bar(chosen.seconds / total, "b"));
    this.sum.textContent = `Prefill ${seconds(found.prefill_seconds)}, then ${bytes(found.kv_bytes_per_link)} over ` +
      `${found.num_links === 1 ? "one link" : `each of ${found.num_links} links`} in ${seconds(chosen.seconds)}. Sent layer by layer ` +
      `while the prefill goes on, nearly all of that is hidden. The fleet's links carry ` +
      `${bytes(found.transfer_bytes_per_second)}/s.`;
    this.showPools(found, values);
    this.prompt = values.prompt;
    this.curves.show([found.curve_prompts, found.curve_prefill, found.curve_transfer]);
    this.curves.redraw();
    this.rows.replaceChildren(...found.ways.map((way) => element("tr", { class: way.link === values.link ? "chosen" : null },
      element("th", { scope: "row", text: LINKS[way.link] ?? way.link }),
      element("td", { text: `${bytes(way.bytes_per_second)}/s` }), element("td", { text: seconds(way.seconds) }),
      element("td", { text: percent(way.share_of_prefill) }))));
    this.status(`${bytes(found.kv_bytes)} in ${seconds(chosen.seconds)}, ${percent(chosen.share_of_prefill)} of the prefill`);
  }

  showPools(found, values) {
    const { decode } = found;
    const row = (label, prefill) => element("div", { class: "pool" },
      element("p", { class: "pool-name", text: label }),
      element("p", { class: "ratio", text: decode ? `${prefill.replicas} : ${decode.replicas}` : `${prefill.replicas} : –` }),
      element("p", { class: "squares", "aria-hidden": "true" },
        ...squares(prefill.replicas, "a"), ...squares(decode?.replicas ?? 0, "b")),
      element("p", { class: "note", text: `${prefill.busy.toFixed(2)} busy with prefill` +
        (decode ? `, ${decode.busy.toFixed(2)} with decode` : "") }));
    this.pools.replaceChildren(row("Prefill : decode, nothing cached", found.prefill),
      row(`Prefill : decode, ${values.hits} % hits`, found.prefill_with_hits));
    this.sizing.textContent = decode
      ? `${values.rate}/s × ${count(values.output)} tokens × ${values.tpot} ms = ${count(found.decode_concurrency)} answers ` +
        `at once; ${count(found.max_batch)} of them fit in a step of ${values.tpot} ms. Means only: queues want some more.`
      : `No replica can write a token every ${values.tpot} ms: alone, one takes ${seconds(found.decode_step_seconds)}.`;
  }
}

function squares(number, className) {
  const shown = Math.min(number, 60);
  const made = Array.from({ length: shown }, () => element("span", { class: `square ${className}` }));
  if (number > shown) made.push(`+${count(number - shown)}`);
  return made;
}
