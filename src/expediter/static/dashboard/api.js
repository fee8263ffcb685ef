// Asking the admin port, with its token if it wants one.

import { element } from "/static/lab/dom.js";

const KEPT = "expediter-admin-token";
let token = sessionStorage.getItem(KEPT) ?? "";
let asking = null;

// A response; a port that wants a token gets it from the person first.
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  for (;;) {
    const given = { ...headers };
    if (token) given.authorization = `Bearer ${token}`;
    if (body !== undefined) given["content-type"] = "application/json";
    const response = await fetch(path, { method, body, headers: given, signal });
    if (response.status !== 401 || !response.headers.has("www-authenticate")) return response;
    asking ??= askForToken(token !== "").finally(() => { asking = null; });
    await asking;
  }
}

// What a request that changes something answers; throws with the reason if it was refused.
export async function order(path, { method = "POST", body } = {}) {
  const response = await ask(path, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(said.error?.message ?? `the gateway answered ${response.status}`);
  return said;
}

// Calls `show` with each snapshot and `tell` with how it is going, for as long as the page is seen.
export async function follow(show, tell) {
  let pause = 1;
  for (;;) {
    await seen();
    const leaving = new AbortController();
    const leave = () => { if (document.hidden) leaving.abort(); };
    document.addEventListener("visibilitychange", leave);
    try {
      const response = await ask("/events", { signal: leaving.signal });
      if (!response.ok) throw new Error(`the gateway answered ${response.status}`);
      for await (const data of events(response.body)) {
        pause = 1;
        show(JSON.parse(data));
      }
      throw new Error("the gateway closed the stream");
    } catch (error) {
      if (!document.hidden) tell(error);
    } finally {
      document.removeEventListener("visibilitychange", leave);
      leaving.abort();
    }
    await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
    pause = Math.min(10, pause * 2);
  }
}

// The data of each server-sent event in a body.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (left + value).split("\n\n");
    left = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
  }).then(seen);
}

function askForToken(wasWrong) {
  const input = element("input", { type: "password", id: "token", required: true, autocomplete: "off" });
  const form = element("form", {},
    element("h2", { id: "token-title", text: "Admin token" }),
    element("p", { text: wasWrong ? "That token was not the right one." : "This gateway asks for its admin token: gateway.admin.token in its settings. It is kept in this tab only." }),
    element("label", { for: "token", text: "Token" }), input,
    element("p", { class: "actions" }, element("button", { class: "strong", type: "submit", text: "Go on" })));
  const dialog = element("dialog", { class: "small", "aria-labelledby": "token-title" }, form);
  document.body.append(dialog);
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.showModal();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      token = input.value.trim();
      sessionStorage.setItem(KEPT, token);
      dialog.remove();
      resolve();
    });
  });
}
