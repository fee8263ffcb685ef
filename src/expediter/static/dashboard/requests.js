// The last requests, and one of them in full.

import { bytes, count, element, seconds } from "/static/lab/dom.js";
import { ask } from "./api.js";
import { ago, keyed, meaning, place, setBar, setText, shortId, tone, track, workerChip } from "./parts.js";

const keyOf = (decision) => `${decision.request_id} ${decision.num_tries} ${decision.process ?? 0}`;
const isOver = (decision) => decision.error !== null || decision.stages.answer !== undefined;

export class Requests {
  constructor() {
    this.isHeld = false;
    this.shown = null;
    this.scores = null;
    place("pause").addEventListener("click", () => this.hold(!this.isHeld));
    const dialog = place("request");
    dialog.addEventListener("close", () => { this.shown = null; });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  }

  hold(isHeld) {
    this.isHeld = isHeld;
    place("pause").ariaPressed = String(isHeld);
  }

  show(decisions) {
    if (this.shown) {
      const now = decisions.find((decision) => keyOf(decision) === keyOf(this.shown));
      if (now && !isOver(this.shown)) this.fill(now);
    }
    if (this.isHeld) return;
    place("no-decisions").hidden = decisions.length > 0;
    keyed(place("decisions"), decisions, { key: keyOf, make: () => this.row(), update: updateRow });
  }

  row() {
    const button = element("button", { type: "button", class: "link" });
    const cells = [element("td", {}, button, element("span", { class: "age" }))];
    for (const className of ["", "", "number", "", "number", "number", ""]) cells.push(element("td", { class: className || null }));
    cells[4].append(element("span", { class: "found" }, track(0), element("span")));
    const row = element("tr", {}, ...cells);
    row.addEventListener("click", () => this.open(row.decision));
    return row;
  }

  async open(decision) {
    this.scores = null;
    this.fill(decision);
    place("request").showModal();
    const response = await ask("/decisions?limit=1000");
    if (!response.ok) return;
    const found = (await response.json()).find((each) => keyOf(each) === keyOf(decision));
    if (!found || !this.shown || keyOf(this.shown) !== keyOf(decision)) return;
    this.scores = found.scores;
    this.fill(found);
  }

  fill(decision) {
    this.shown = decision;
    const dialog = place("request");
    const close = element("button", { type: "button", class: "quiet", text: "Close", onclick: () => dialog.close() });
    const hadFocus = dialog.contains(document.activeElement);
    dialog.replaceChildren(
      element("h2", { id: "request-title", text: `Request ${shortId(decision.request_id)}` }),
      facts(decision), ...timeline(decision), ...scoreTable(decision, this.scores),
      element("p", { class: "actions" }, close));
    if (hadFocus) close.focus();
  }
}

function updateRow(row, decision) {
  row.decision = decision;
  const [first, worker, why, prompt, cached, ttft, output, state] = row.children;
  setText(first.firstElementChild, shortId(decision.request_id));
  first.firstElementChild.ariaLabel = `Request ${shortId(decision.request_id)}, details`;
  setText(first.lastElementChild, ago(decision.age_seconds));
  if (!worker.childElementCount) {
    if (decision.prefill_worker) worker.append(workerChip(decision.prefill_worker), " → ");
    worker.append(workerChip(decision.worker));
    why.append(element("span", { class: "pill", text: decision.reason, title: meaning(decision.reason) }));
  }
  setText(prompt, count(decision.prompt_tokens ?? decision.num_tokens));
  const [bar, number] = cached.firstElementChild.children;
  const isTold = decision.cached_tokens !== null;
  const tokens = isTold ? decision.cached_tokens : decision.matched_tokens;
  const ofTokens = isTold ? decision.prompt_tokens ?? decision.num_tokens : decision.num_tokens;
  bar.firstElementChild.className = `bar ${tone(decision.worker)}`;
  setBar(bar, ofTokens ? tokens / ofTokens : 0);
  setText(number, isTold ? count(tokens) : `${count(tokens)}?`);
  setText(ttft, decision.ttft_seconds === null ? "" : seconds(decision.ttft_seconds));
  setText(output, decision.output_tokens === null ? "" : count(decision.output_tokens));
  const [text, look] = stateOf(decision);
  if (state.textContent !== text) state.replaceChildren(element("span", { class: `pill ${look}`, text }));
}

function stateOf(decision) {
  if (decision.error !== null) return [decision.error, "bad"];
  if (decision.status === null) return ["waiting", "warn"];
  if (decision.status >= 400) return [`status ${decision.status}`, "bad"];
  return isOver(decision) ? ["done", ""] : ["answering", "good"];
}

function facts(decision) {
  const told = decision.cached_tokens === null ? "not told" : count(decision.cached_tokens);
  const rows = [
    ["Name", decision.request_id],
    ["Worker", decision.prefill_worker ? `${decision.prefill_worker} read the prompt, ${decision.worker} answered` : decision.worker],
    ["Why", [decision.reason, meaning(decision.reason)].filter(Boolean).join(": ")],
    ["Prompt", `${count(decision.prompt_tokens ?? decision.num_tokens)} tokens; cached: ${told}; predicted: ${count(decision.matched_tokens)} of ${count(decision.num_tokens)}`],
    ["Answer", decision.output_tokens === null ? null : `${count(decision.output_tokens)} tokens`],
    ["Try", decision.num_tries > 1 ? `number ${decision.num_tries}: another worker failed before` : null],
    ["One worker instead of two", decision.fallback],
    ["KV moved", transferred(decision.transfer)],
    ["State", stateOf(decision)[0]],
  ];
  return element("dl", { class: "facts" }, ...rows.filter(([, value]) => value)
    .flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]));
}

function transferred(transfer) {
  if (!transfer) return null;
  const parts = [transfer.tokens !== null && `${count(transfer.tokens)} tokens`, transfer.bytes !== null && bytes(transfer.bytes),
    transfer.seconds !== null && `in ${seconds(transfer.seconds)}`,
    transfer.exposed_seconds !== null && `${seconds(transfer.exposed_seconds)} after the prompt was computed`];
  return parts.filter(Boolean).join(", ") || transfer.failure;
}

const STAGES = {
  read: "Read, tokenised",
  place: "Queued here, placed",
  prefill: "Queued at the first worker, prompt computed",
  transfer: "KV handed over, first token on its way",
  first_token: "Queued at the worker, prompt computed, first token",
  answer: "The rest of the answer",
};

function timeline(decision) {
  const stages = [];
  for (const [name, value] of Object.entries(decision.stages)) {
    const prefill = decision.prefill_seconds ?? null;
    if (name === "first_token" && prefill !== null && prefill <= value) stages.push(["prefill", prefill], ["transfer", value - prefill]);
    else stages.push([name, Math.max(0, value)]);
  }
  if (!stages.length) return [element("p", { class: "note", text: "It is still on its way; its stages show when it is over." })];
  const whole = stages.reduce((sum, [, value]) => sum + value, 0);
  const bars = stages.map(([name, value]) => {
    const part = element("span", { class: `stage-${name}`, title: STAGES[name] });
    part.style.flexGrow = String(Math.max(value / (whole || 1), 0.001));
    return part;
  });
  return [
    element("h3", { class: "visually-hidden", text: "Stages" }),
    element("div", { class: "stages", "aria-hidden": "true" }, ...bars),
    element("ol", { class: "stage-list" }, ...stages.map(([name, value]) => element("li", {},
      element("i", { class: `stage-${name}` }), element("span", { text: STAGES[name] }), element("b", { text: seconds(value) })))),
  ];
}

function scoreTable(decision, scores) {
  const rows = Object.entries(scores ?? {}).sort((a, b) => b[1] - a[1]);
  if (!rows.length) return [];
  const best = rows[0][1];
  const range = best - rows[rows.length - 1][1];
  return [
    element("h2", { text: "What each worker scored" }),
    element("table", { class: "scores" },
      element("thead", {}, element("tr", {}, ...["Worker", "", "Score"].map((text, at) => element("th", { scope: "col", text, class: at === 2 ? "number" : null })))),
      element("tbody", {}, ...rows.map(([worker, score]) => element("tr", { class: worker === decision.worker || worker === decision.prefill_worker ? "chosen" : null },
        element("td", {}, workerChip(worker)),
        element("td", {}, track(range ? 0.04 + 0.96 * (1 - (best - score) / range) : 1, tone(worker))),
        element("td", { class: "number", text: score.toPrecision(4) }))))),
    element("p", { class: "note", text: "More is better; what a score counts is the policy's own. The table may hold a worker that was not allowed to be chosen." }),
  ];
}
