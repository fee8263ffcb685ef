// The dashboard: a snapshot a second, shown in place.

import { count, seconds } from "/static/lab/dom.js";
import { follow } from "./api.js";
import { showCharts, showCounts, showTiles } from "./figures.js";
import { place } from "./parts.js";
import { showPrefixes } from "./prefixes.js";
import { Requests } from "./requests.js";
import { showTransfers } from "./transfers.js";
import { showPolicy, showWorkers } from "./workers.js";

const requests = new Requests();

follow(show, (error) => {
  state(`No connection, trying again: ${error.message}`, false);
});

function show(snapshot) {
  place("problem").hidden = !snapshot.problem;
  if (snapshot.problem) {
    place("problem").textContent = snapshot.problem;
    return;
  }
  state("Live", true);
  const { stats, decisions, summary, by_time: byTime, prefixes } = snapshot;
  showWorkers(stats.workers);
  showPolicy(stats.policy);
  showTiles(stats, summary);
  showCharts(byTime, summary);
  requests.show(decisions);
  showPrefixes(prefixes);
  showTransfers(stats.workers, decisions);
  showCounts(stats);
  foot(stats);
}

function state(text, isGood) {
  const live = place("live");
  if (live.textContent !== text) live.textContent = text;
  live.classList.toggle("good", isGood);
}

function foot(stats) {
  const minutes = Math.floor(stats.uptime_seconds / 60);
  const up = minutes < 1 ? seconds(Math.floor(stats.uptime_seconds)) : `${count(minutes)} min`;
  const processes = stats.num_processes > 1 ? `${stats.num_processes} gateway processes, ` : "";
  place("foot").textContent = `${processes}up for ${up}, ${count(stats.requests.placed)} requests placed.`;
}

