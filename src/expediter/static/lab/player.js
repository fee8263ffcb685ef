// Plays frames: a button, a place to scrub, a speed.

import { element } from "./dom.js";

const SPEEDS = [1, 2, 4];

export class Player {
  // `onframe` shows a frame; `onrest` is told the time when it was chosen by hand or play stops.
  constructor({ onframe, onrest }) {
    Object.assign(this, { onframe, onrest });
    this.times = [];
    this.time = 0;
    this.speed = 2;
    this.button = element("button", { type: "button", class: "play", text: "Play", disabled: true, onclick: () => this.toggle() });
    this.scrub = element("input", { type: "range", min: 0, max: 0, step: 1, disabled: true, "aria-label": "Moment of the burst",
      oninput: () => this.pick(false), onchange: () => this.pick(true) });
    this.clock = element("span", { class: "clock" });
    const speeds = element("select", { "aria-label": "Speed of play" },
      ...SPEEDS.map((speed) => element("option", { value: speed, text: `${speed}×`, selected: speed === this.speed })));
    speeds.addEventListener("change", () => { this.speed = Number(speeds.value); });
    this.made = element("div", { class: "player" }, this.button, this.scrub, this.clock, speeds);
  }

  load(times, time) {
    this.times = times;
    this.scrub.max = times.length - 1;
    this.scrub.disabled = this.button.disabled = false;
    this.seek(time, false);
  }

  say(text) {
    this.clock.textContent = text;
  }

  toggle() {
    if (this.playing) {
      this.stop();
      this.onrest(this.time, true);
      return;
    }
    if (this.time >= this.times.at(-1)) this.seek(0, false);
    this.playing = true;
    this.button.textContent = "Pause";
    let before = null;
    const step = (now) => {
      if (!this.playing) return;
      const passed = before === null ? 0 : ((now - before) / 1000) * this.speed;
      before = now;
      if (this.time + passed >= this.times.at(-1)) {
        this.stop();
        this.seek(this.times.at(-1), true);
        return;
      }
      this.go(this.time + passed);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  stop() {
    this.playing = false;
    this.button.textContent = "Play";
  }

  // Go to a time; with `tells`, as chosen by hand.
  seek(time, tells) {
    this.go(time);
    if (tells) this.onrest(this.time, true);
  }

  pick(settled) {
    this.stop();
    this.go(this.times[this.scrub.valueAsNumber]);
    this.onrest(this.time, settled);
  }

  go(time) {
    const last = this.times.at(-1);
    this.time = Number(Math.max(0, Math.min(last, time)).toFixed(2));
    const frame = Math.round((this.time / last) * (this.times.length - 1));
    this.scrub.valueAsNumber = frame;
    const shown = `${this.time.toFixed(1)} s`;
    this.scrub.setAttribute("aria-valuetext", shown);
    this.say(shown);
    this.onframe(frame);
  }
}
