// A chat with the fleet, and under each answer what the router and the worker told of it.

import { count, element, percent, seconds } from "/static/lab/dom.js";
import { ask, events } from "./api.js";
import { meaning, place, tone, track, workerChip } from "./parts.js";

const SYSTEM = `You are the guide of a small museum in an old lighthouse. Visitors write to you before they come, and you answer in a friendly, plain way, in two or three sentences, without lists.

What you know: The lighthouse was built in 1858 on a cliff of chalk and stands 31 metres high; 142 steps lead up to the lamp. It burned rapeseed oil, then paraffin, and has been electric since 1932. The lens is of the first order, made in Paris, and floats in a bath of mercury, so that a child can turn its two tonnes with one finger. The last keeper, Ada Harrow, left in 1984 after 26 years, and her logbooks are in the room at the bottom: every ship, every storm, and a list of birds that flew against the glass. The museum is open from April to October, from ten until five, closed on Tuesdays. Tickets are six pounds, three for children, and dogs may come in but not up. The last bus back to town leaves at twenty past five.`;
const SUGGESTIONS = ["How high is the lighthouse?", "Who was the last keeper?", "May I bring my dog?"];
const KEPT_KEY = "expediter-playground-key";

let messages = [];
let running = null;

place("system").value = SYSTEM;
place("key").value = sessionStorage.getItem(KEPT_KEY) ?? "";
place("key").addEventListener("change", () => {
  sessionStorage.setItem(KEPT_KEY, place("key").value.trim());
  loadModels();
});
place("suggestions").append(...SUGGESTIONS.map((text) => element("button", { type: "button", class: "quiet", text, onclick: () => say(text) })));
place("fresh").addEventListener("click", begin);
place("stop").addEventListener("click", () => running?.abort());
place("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  say(place("message").value.trim());
});
place("settings").addEventListener("submit", (event) => event.preventDefault());
place("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  place("ask").requestSubmit();
});
place("message").addEventListener("input", grow);
place("settings-place").open = !matchMedia("(max-width: 860px)").matches;
loadModels();

function keyHeader() {
  const key = place("key").value.trim();
  return key ? { "x-api-key": key } : {};
}

async function loadModels() {
  const response = await ask("/playground/models", { headers: keyHeader() });
  if (response.status === 401) askForKey();
  if (!response.ok) return problem(await reason(response));
  const { data } = await response.json();
  place("model").replaceChildren(...data.map(({ id }) => element("option", { value: id, text: id })));
  problem(data.length ? null : "No worker is ready yet, so no model is known.");
}

function askForKey() {
  place("key-place").hidden = false;
  place("settings-place").open = true;
}

function begin() {
  running?.abort();
  messages = [];
  place("messages").replaceChildren();
  place("welcome").hidden = false;
  problem(null);
  place("message").focus();
}

async function say(text) {
  if (!text || running) return;
  problem(null);
  if (!place("model").value) await loadModels();
  place("welcome").hidden = true;
  place("message").value = "";
  grow();
  messages.push({ role: "user", content: text });
  const mine = element("li", { class: "mine" }, element("p", { text }));
  const theirs = element("li", { class: "theirs busy" }, element("p"));
  place("messages").append(mine, theirs);
  theirs.scrollIntoView({ block: "end" });
  running = new AbortController();
  busy(true);
  const answer = { text: "", usage: null, headers: null, startedAt: performance.now(), firstAt: null, endedAt: null };
  try {
    await listen(answer, theirs);
  } catch (error) {
    if (error.name !== "AbortError") problem(error.message);
  } finally {
    running = null;
    busy(false);
    theirs.classList.remove("busy");
    answer.endedAt = performance.now();
    finish(answer, mine, theirs, text);
  }
}

async function listen(answer, theirs) {
  const system = place("system").value.trim();
  const body = {
    model: place("model").value, stream: true, stream_options: { include_usage: true },
    max_tokens: Number(place("tokens").value) || 120,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
  };
  const response = await ask("/playground/chat", { method: "POST", body: JSON.stringify(body), headers: keyHeader(), signal: running.signal });
  if (response.status === 401) askForKey();
  if (!response.ok) throw new Error(await reason(response));
  answer.headers = response.headers;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") continue;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    answer.usage = chunk.usage ?? answer.usage;
    const words = chunk.choices?.[0]?.delta?.content;
    if (!words) continue;
    answer.firstAt ??= performance.now();
    answer.text += words;
    theirs.firstElementChild.textContent = answer.text;
    if (isNearEnd()) theirs.scrollIntoView({ block: "end" });
  }
}

// An answer that never began is taken back, and its question can be sent again.
function finish(answer, mine, theirs, text) {
  if (answer.firstAt === null && answer.usage === null) {
    messages.pop();
    mine.remove();
    theirs.remove();
    place("message").value = text;
    place("welcome").hidden = messages.length > 0;
    return;
  }
  messages.push({ role: "assistant", content: answer.text });
  theirs.append(told(answer));
  if (isNearEnd(400)) theirs.scrollIntoView({ block: "end" });
  place("said").textContent = `Answer: ${answer.text}. ${theirs.querySelector(".told p").textContent}`;
}

function told({ usage, headers, startedAt, firstAt, endedAt }) {
  const worker = headers.get("x-expediter-worker") ?? "?";
  const why = headers.get("x-expediter-reason") ?? "";
  const predicted = Number(headers.get("x-expediter-matched-tokens") ?? 0);
  const prompt = usage?.prompt_tokens ?? null;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? (usage ? 0 : null);
  const facts = [
    ["Worker", workerChip(worker)],
    ["First token after", firstAt === null ? "–" : seconds((firstAt - startedAt) / 1000)],
    ["Whole answer", usage ? `${count(usage.completion_tokens)} tokens in ${seconds((endedAt - startedAt) / 1000)}` : `stopped after ${seconds((endedAt - startedAt) / 1000)}`],
    ["Predicted", `${count(predicted)} cached`],
  ];
  const share = prompt ? cached / prompt : 0;
  return element("div", { class: "told" },
    usage ? element("p", {}, element("b", { class: "cached", "data-cached": String(cached), text: `${count(cached)} of ${count(prompt)} prompt tokens were cached` }), ` (${percent(share)}); ${count(prompt - cached)} had to be computed.`)
      : element("p", { text: "What was cached is told at the end of an answer, and this one was stopped." }),
    track(share, tone(worker)),
    element("dl", {}, ...facts.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", {}, value)))),
    element("p", {}, "Why there: ", element("b", { text: why }), meaning(why) ? `, which ${verb(why)}${meaning(why)}.` : "."));
}

const verb = (why) => (why === "longest-match" || why === "least-loaded" ? "means that it " : "means: ");

function busy(isBusy) {
  place("send").hidden = isBusy;
  place("stop").hidden = !isBusy;
  if (!isBusy) place("message").focus({ preventScroll: true });
}

function problem(text) {
  place("problem").hidden = text === null;
  place("problem").textContent = text ?? "";
}

async function reason(response) {
  const said = await response.json().catch(() => ({}));
  return said.error?.message ?? `The gateway answered ${response.status}.`;
}

function grow() {
  const box = place("message");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function isNearEnd(margin = 200) {
  return innerHeight + scrollY > document.documentElement.scrollHeight - margin;
}
