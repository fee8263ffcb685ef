// Small pieces of the pages.

import { bar, element } from "/static/lab/dom.js";

export const place = (id) => document.getElementById(id);

// Makes the children of `parent` those of `items`, in order; an item that stays keeps its element,
// and with it the focus. `make(item)` returns an element, `update(element, item)` fills it.
export function keyed(parent, items, { key, make, update }) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = before.get(name);
    before.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    update(child, item);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  for (const child of before.values()) child.remove();
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Each worker keeps its colour for as long as the page is open.
const tones = new Map();
export function tone(worker) {
  if (!tones.has(worker)) tones.set(worker, tones.size % 8);
  return `tone-${tones.get(worker)}`;
}
export const workerChip = (worker) => element("span", { class: `worker ${tone(worker)}` }, element("span", { text: worker }));
export const track = (share, className = "") => element("span", { class: "track", "aria-hidden": "true" }, bar(share, className));

export const setBar = (tracked, share) => {
  tracked.firstElementChild.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
};

export function ago(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

export const shortId = (id) => (id.length > 8 ? `…${id.slice(-6)}` : id);

const REASONS = {
  "longest-match": "holds the longest cached part of the prompt",
  "no-match": "no worker holds any of it",
  "less-loaded": "others hold some of it, and have more to do",
  overloaded: "a worker with a longer match has too much to do",
  "round-robin": "it was this worker's turn",
  random: "drawn by lot",
  "least-loaded": "has the least to do",
  split: "shared between two workers",
  together: "two workers would have cost more than this one",
  "short-prompt": "too little was left to compute for two workers",
  "no-other-worker": "there was no second worker to read the prompt",
  sticky: "its conversation stays there",
  overflow: "its conversation's own worker has too much to do",
  "power-of-two": "the less loaded of two drawn by lot",
  "cache-hit": "enough of the prompt is cached there",
  "shortest-queue": "has the fewest requests",
  "smallest-tree": "has the least in its cache",
  "least-cost": "costs the least, cache and load together",
  drawn: "drawn by lot among the good ones",
  exploit: "the cached part saves more than it misses",
  balance: "finds most of its prompts cached, so it has time to compute",
  rebalance: "moved away from a worker with much more to do",
  replicate: "a second copy of what too many ask for",
  explore: "too little is cached; the cheapest place to compute it",
};
export const meaning = (reason) => REASONS[reason] ?? "";

// Asks before something is changed; `act` runs if the answer is yes, and what it throws is shown.
export function confirm({ title, text, action, extra = null, act }) {
  const dialog = place("confirm");
  const problem = element("p", { class: "notice", role: "alert", hidden: true });
  const go = element("button", { type: "button", class: "strong", text: action });
  const cancel = element("button", { type: "button", class: "quiet", text: "Cancel", onclick: () => dialog.close() });
  dialog.className = "small";
  dialog.replaceChildren(
    element("h2", { id: "confirm-title", text: title }),
    ...[text].flat().map((line) => element("p", { text: line })),
    ...(extra ? [extra] : []), problem,
    element("p", { class: "actions" }, cancel, go));
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      place("said").textContent = await act();
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      go.disabled = false;
    }
  });
  dialog.showModal();
  cancel.focus();
}
