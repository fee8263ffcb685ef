// KV on its way from the worker that read a prompt to the one that answers.

import { bytes, count, element, seconds } from "/static/lab/dom.js";
import { place, shortId, workerChip } from "./parts.js";

const NUM_DONE = 5;

export function showTransfers(workers, decisions) {
  const pairs = decisions.filter((decision) => decision.prefill_worker);
  place("transfers-card").hidden = !pairs.length && workers.every((worker) => worker.role === "both");
  const underWay = pairs.filter((decision) => decision.status === null && decision.error === null);
  const done = pairs.filter((decision) => decision.transfer).slice(0, NUM_DONE);
  const rows = [...underWay.map((decision) => line(decision, "under way")), ...done.map((decision) => line(decision, words(decision.transfer)))];
  place("transfers").replaceChildren(rows.length
    ? element("ul", { class: "counts" }, ...rows)
    : element("p", { class: "empty", text: "Nothing has been handed over yet." }));
}

function line(decision, text) {
  return element("li", {}, element("div", { class: "label" },
    element("div", {}, workerChip(decision.prefill_worker), " → ", workerChip(decision.worker)),
    element("span", { text: `${shortId(decision.request_id)} ${text}` })));
}

function words(transfer) {
  if (transfer.failure) return `failed: ${transfer.failure}`;
  return [transfer.tokens !== null && `${count(transfer.tokens)} tokens`, transfer.bytes !== null && bytes(transfer.bytes),
    transfer.exposed_seconds !== null && `${seconds(transfer.exposed_seconds)} exposed`].filter(Boolean).join(", ") || "done";
}
