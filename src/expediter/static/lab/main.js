// Puts a panel on the page and keeps it in step with the address.

import * as burst from "./burst.js";
import * as routing from "./routing.js";
import * as transfer from "./transfer.js";
import { ask } from "./ask.js";
import { buildControls } from "./controls.js";
import { element } from "./dom.js";
import { State } from "./state.js";
import { WORDS } from "./words.js";

const PANELS = { routing, transfer, burst };
const find = (id) => document.getElementById(id);

class Page {
  constructor(choices) {
    this.choices = choices;
    const defaults = Object.fromEntries(
      Object.keys(PANELS).map((panel) => [panel, Object.fromEntries(
        Object.entries(choices.controls[panel]).map(([key, { default: value }]) => [key, value]))]));
    this.state = new State({ ...defaults, burst: { ...defaults.burst, ...burst.LOCAL } });
    this.state.listeners.push(() => this.update());
    find("reset").addEventListener("click", () => this.state.open(this.state.panel));
    find("controls").addEventListener("submit", (event) => event.preventDefault());
    find("words").replaceChildren(
      ...WORDS.flatMap(([word, meaning]) => [element("dt", { text: word }), element("dd", { text: meaning })]));
    this.update();
  }

  update() {
    const { panel } = this.state;
    if (panel !== this.shown) this.open(panel);
    this.showTabs();
    this.updateControls();
    this.panel.update();
  }

  open(name) {
    this.panel?.leave();
    this.shown = name;
    const module = PANELS[name];
    find("title").textContent = module.title;
    find("lead").textContent = module.lead;
    document.title = `${module.name} · Expediter lab`;
    this.problem(null);
    this.updateControls = buildControls(
      find("controls"), module.groups(this.choices), this.state, this.choices.controls[name]);
    this.panel = new module.Panel({
      state: this.state, choices: this.choices, headline: find("headline"), results: find("results"),
      status: (text) => this.say(text), problem: (error) => this.problem(error),
    });
  }

  showTabs() {
    find("tabs").replaceChildren(...Object.entries(PANELS).map(([name, module]) => element("a", {
      href: `${location.pathname}${this.state.query(name, this.state.defaults[name])}`,
      text: module.name, "aria-current": name === this.state.panel ? "page" : null,
      onclick: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        this.state.open(name);
        find("tabs").querySelector("[aria-current]").focus();
      },
    })));
  }

  // To screen readers, once the hand is off the slider.
  say(text) {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { find("status").textContent = text; }, 600);
  }

  problem(error) {
    find("problem").hidden = error === null;
    find("problem").textContent = error === null ? "" : error.message;
  }
}

ask("choices", {}).then((choices) => new Page(choices)).catch((error) => {
  find("problem").hidden = false;
  find("problem").textContent = `The lab's server does not answer: ${error.message}`;
});
