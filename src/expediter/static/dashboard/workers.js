// The workers, and what may be done to them.

import { count, element, percent, short } from "/static/lab/dom.js";
import { order } from "./api.js";
import { confirm, keyed, place, setBar, setText, tone, track, workerChip } from "./parts.js";

const ROLES = { both: "", prefill: "reads prompts; ", decode: "answers; " };
const STATUS = { up: "good", draining: "warn", starting: "", down: "bad" };

export function showWorkers(workers) {
  workers.forEach((worker) => tone(worker.worker_id));
  const busiest = Math.max(4096, ...workers.map((worker) => worker.load_tokens));
  keyed(place("workers"), workers, { key: (worker) => worker.worker_id, make, update: (card, worker) => update(card, worker, busiest) });
}

function make(worker) {
  const meter = (name) => element("p", { class: "meter", "data-meter": name },
    element("span", { class: "label" }, element("span"), element("b")), track(0, tone(worker.worker_id)));
  const card = element("li", { class: "card", "data-worker": worker.worker_id },
    element("p", { class: "title" }, workerChip(worker.worker_id), element("span", { class: "pill" })),
    meter("load"), meter("kv"), meter("hits"),
    element("p", { class: "foot-line" }, element("span"), element("button", { type: "button", class: "quiet" })));
  card.querySelector("button").addEventListener("click", () => drain(card.worker));
  return card;
}

function update(card, worker, busiest) {
  card.worker = worker;
  const pill = card.querySelector(".pill");
  const isBroken = worker.status === "up" && worker.breaker !== "closed";
  setText(pill, isBroken ? `breaker ${worker.breaker}` : worker.status);
  pill.className = `pill ${isBroken ? "bad" : STATUS[worker.status] ?? ""}`;
  const busy = worker.num_waiting ? `${count(worker.num_requests)} requests, ${count(worker.num_waiting)} wait` : `${count(worker.num_requests)} requests`;
  meter(card, "load", `Load: ${busy}`, `${short(worker.load_tokens)} tokens`, worker.load_tokens / busiest);
  const usage = worker.kv_usage;
  meter(card, "kv", "KV memory in use", usage === null ? "not told" : percent(usage), usage ?? 0);
  const rate = worker.prompt_tokens ? worker.actual_cached_tokens / worker.prompt_tokens : null;
  meter(card, "hits", "Found in its cache", rate === null ? "–" : percent(rate), rate ?? 0);
  const [facts, button] = card.lastElementChild.children;
  const failures = worker.total_failures ? `, ${count(worker.total_failures)} failed` : "";
  setText(facts, `${ROLES[worker.role] ?? ""}${count(worker.total_requests)} served${failures}`);
  setText(button, worker.is_draining ? "Undrain" : "Drain");
  button.ariaLabel = `${button.textContent} ${worker.worker_id}`;
}

function meter(card, name, label, value, share) {
  const found = card.querySelector(`[data-meter=${name}]`);
  setText(found.firstElementChild.firstElementChild, label);
  setText(found.firstElementChild.lastElementChild, value);
  setBar(found.lastElementChild, share);
}

function drain(worker) {
  const { worker_id: id, is_draining: isDraining, num_requests: number } = worker;
  const verb = isDraining ? "undrain" : "drain";
  confirm({
    title: isDraining ? `Undrain ${id}?` : `Drain ${id}?`,
    text: isDraining
      ? "It gets new requests again, at once."
      : `It finishes the ${count(number)} requests it has and gets no new ones. Its cache stays. You can undo this.`,
    action: isDraining ? "Undrain" : "Drain",
    act: async () => {
      await order(`/workers/${encodeURIComponent(id)}/${verb}`);
      return isDraining ? `${id} gets requests again.` : `${id} is draining.`;
    },
  });
}

export const POLICIES = {
  slo: "least predicted harm to this and all other requests",
  "cache-aware": "longest match among those not overloaded",
  preble: "exploit what is cached, or explore",
  dynamo: "NVIDIA Dynamo's cost of blocks",
  sglang: "SGLang's tree and thresholds",
  sticky: "a conversation stays where it was",
  "power-of-two": "the less loaded of two drawn by lot",
  "least-loaded": "who has the least to do",
  "round-robin": "one after the other",
  random: "by lot",
};

let policy = "";
export function showPolicy(current) {
  const parent = place("policy-place");
  if (policy === current && parent.childElementCount) return;
  policy = current;
  const button = element("button", { type: "button", class: "quiet", id: "change-policy", text: "Change", "aria-label": "Change the policy", onclick: changePolicy });
  parent.replaceChildren("Placed by ", element("span", { class: "pill good", id: "policy", text: current }), " ", button);
}

function changePolicy() {
  const choices = element("fieldset", { class: "policies" }, element("legend", { class: "visually-hidden", text: "Policy" }),
    ...Object.entries(POLICIES).map(([name, words]) => element("label", {},
      element("input", { type: "radio", name: "policy", value: name, checked: name === policy }),
      element("span", { text: name }), element("small", { text: words }))));
  confirm({
    title: "Place requests by", text: [], action: "Change", extra: choices,
    act: async () => {
      const chosen = choices.querySelector(":checked").value;
      await order("/policy", { body: { policy: chosen } });
      return `Requests are placed by ${chosen} now.`;
    },
  });
}
