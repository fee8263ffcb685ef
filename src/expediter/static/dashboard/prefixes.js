// The tree of what prompts share.

import { count, element } from "/static/lab/dom.js";
import { ago, place, track, workerChip } from "./parts.js";

let shown = "";

export function showPrefixes(prefixes) {
  const parent = place("prefixes");
  // Ages are shown roughly, so that the tree stays as it is while nothing happens.
  const known = JSON.stringify(prefixes.map((each) => [each.prefix, each.num_requests, each.workers, Math.round(each.age_seconds / 15)]));
  if (known === shown) return;
  shown = known;
  if (!prefixes.length) {
    parent.replaceChildren(element("p", { class: "empty", text: "No two prompts have begun alike yet, or requests are placed without looking at them." }));
    return;
  }
  const most = Math.max(...prefixes.map((each) => each.num_requests));
  parent.replaceChildren(branch(prefixes, null, most));
}

function branch(prefixes, above, most) {
  const own = prefixes.filter((each) => each.parent === (above?.prefix ?? null));
  return element("ul", above ? {} : { class: "tree" }, ...own.map((each) => leaf(prefixes, each, above, most)));
}

function leaf(prefixes, prefix, above, most) {
  const more = above ? ` (${count(prefix.num_tokens - above.num_tokens)} more)` : "";
  const holders = prefix.workers.length
    ? prefix.workers.map((worker) => workerChip(worker))
    : [element("span", { class: "pill", text: "nobody holds all of it now" })];
  return element("li", {},
    element("div", { class: "prefix" },
      element("span", {}, element("b", { text: `${count(prefix.num_tokens)} tokens` }), more, " ", element("code", { text: prefix.prefix })),
      element("span", { text: `${count(prefix.num_requests)} requests, ${ago(prefix.age_seconds)}` }),
      track(prefix.num_requests / most),
      element("span", { class: "holders" }, ...holders)),
    ...(prefixes.some((each) => each.parent === prefix.prefix) ? [branch(prefixes, prefix, most)] : []));
}
