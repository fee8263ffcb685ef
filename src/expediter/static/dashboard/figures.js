// Figures of the last five minutes, and counts since the start.

import { Curves } from "/static/lab/charts.js";
import { count, element, percent, seconds } from "/static/lab/dom.js";
import { keyed, meaning, place, setBar, setText, track } from "./parts.js";

const orNone = (value, show) => (value === null ? "–" : show(value));
const total = (counts) => Object.values(counts).reduce((sum, number) => sum + number, 0);

export function showTiles(stats, summary) {
  const failed = Object.entries(stats.statuses).filter(([status]) => Number(status) >= 400);
  const refused = total(stats.refusals);
  const numFailed = failed.reduce((sum, [, number]) => sum + number, 0);
  const tiles = [
    ["Answers, last 5 minutes", count(summary.num_answers), `${count(stats.requests.in_flight)} under way now`],
    ["First token, median", orNone(summary.ttft_p50, seconds), `95 %: ${orNone(summary.ttft_p95, seconds)}, 99 %: ${orNone(summary.ttft_p99, seconds)}`],
    ["Each further token", orNone(summary.tpot_p50, seconds), `95 %: ${orNone(summary.tpot_p95, seconds)}, 99 %: ${orNone(summary.tpot_p99, seconds)}`],
    ["Found in a cache", orNone(summary.actual, percent), `predicted: ${orNone(summary.predicted, percent)}`],
    ["Refused or failed", count(refused + numFailed), `${count(refused)} refused, ${count(numFailed)} failed since the start`],
  ];
  keyed(place("tiles"), tiles, {
    key: ([title]) => title,
    make: ([title]) => element("div", {}, element("dt", { text: title }), element("dd"), element("dd", { class: "more" })),
    update: (tile, [, value, more]) => {
      setText(tile.children[1], value);
      setText(tile.children[2], more);
    },
  });
}

// Curves with their points: there may be few.
class Lines extends Curves {
  options() {
    const options = super.options();
    for (const series of options.series.slice(1)) {
      series.points = { show: true, size: 5, fill: series.stroke };
      series.spanGaps = true;
    }
    return options;
  }
}

const PAST = { time: false, range: [-5, 0] };
const minutes = { values: (_, splits) => splits.map((at) => (at === 0 ? "now" : `${at} min`)), space: 60 };
const series = [{ label: "median", colour: "--class-a" }, { label: "95 %", colour: "--class-b", dash: [5, 4] }];
let latency = null;
let hits = null;

export function showCharts(byTime, summary) {
  latency ??= new Lines(place("latency"), {
    series, height: 180, scales: { x: PAST, y: { range: (_, __, max) => [0, (max || 0.1) * 1.15] } },
    axes: [minutes, { size: 64, space: 40, values: (_, splits) => splits.map((at) => (at ? seconds(at) : "0")) }],
  });
  hits ??= new Lines(place("hits"), {
    series, height: 180, scales: { x: PAST, y: { range: [0, 1.03] } },
    axes: [minutes, { size: 56, space: 40, splits: () => [0, 0.25, 0.5, 0.75, 1], values: (_, splits) => splits.map((at) => `${Math.round(100 * at)} %`) }],
  });
  latency.show(columns(byTime, "ttft_p50", "ttft_p95"));
  hits.show(columns(byTime, "actual", "predicted"));
  place("latency").ariaLabel = `Over the last five minutes half of the answers began within ${orNone(summary.ttft_p50, seconds)}, 95 of 100 within ${orNone(summary.ttft_p95, seconds)}.`;
  place("hits").ariaLabel = `Over the last five minutes ${orNone(summary.actual, percent)} of the prompt tokens were cached; predicted were ${orNone(summary.predicted, percent)}.`;
}

function columns(byTime, ...names) {
  const kept = byTime.ages.map((_, at) => at).filter((at) => names.some((name) => byTime[name][at] !== null));
  return [kept.map((at) => -byTime.ages[at] / 60), ...names.map((name) => kept.map((at) => byTime[name][at]))];
}

export function showCounts(stats) {
  const reasons = Object.entries(stats.reasons).sort((a, b) => b[1] - a[1]);
  bars(place("reasons"), reasons.map(([name, number]) => [name, number, meaning(name)]), "No request has been placed yet.");
  const refused = Object.entries(stats.refusals).map(([name, number]) => [name, number, "refused here"]);
  const failed = Object.entries(stats.statuses).filter(([status]) => Number(status) >= 400)
    .map(([status, number]) => [`status ${status}`, number, status === "499" ? "the client left" : "answered so"]);
  const lost = [["no worker was left", stats.requests.unplaced, ""], ["sent again to another worker", stats.requests.retries, ""]];
  bars(place("refusals"), [...refused, ...failed, ...lost].filter(([, number]) => number > 0), "Nothing was refused, and nothing failed.");
}

function bars(parent, rows, none) {
  if (!rows.length) {
    if (parent.textContent !== none) parent.replaceChildren(element("p", { class: "empty", text: none }));
    return;
  }
  if (!parent.querySelector("ul")) parent.replaceChildren(element("ul", { class: "counts" }));
  const most = Math.max(...rows.map(([, number]) => number));
  keyed(parent.firstElementChild, rows, {
    key: ([name]) => name,
    make: ([name, , why]) => element("li", {},
      element("div", { class: "label" }, element("div", {}, element("b", { text: name }), why ? ": " : "", element("span", { text: why })), element("b")),
      track(0)),
    update: (row, [, number]) => {
      setText(row.firstElementChild.lastElementChild, count(number));
      setBar(row.lastElementChild, number / most);
    },
  });
}
