// The state of the page is its address: a panel and what differs from the panel's defaults.

export class State {
  constructor(defaults) {
    this.defaults = defaults; // {panel: {key: default}}
    this.listeners = [];
    addEventListener("popstate", () => this.read());
    this.read();
  }

  // From the address; values that make no sense are left for the server to refuse by name.
  read() {
    const query = new URLSearchParams(location.search);
    const panel = query.get("panel");
    this.panel = panel in this.defaults ? panel : Object.keys(this.defaults)[0];
    this.values = { ...this.defaults[this.panel] };
    for (const [key, initial] of Object.entries(this.values)) {
      const given = query.get(key);
      if (given === null) continue;
      const number = Number(given);
      this.values[key] = typeof initial === "string" || given === "" || Number.isNaN(number) ? given : number;
    }
    this.tell();
  }

  // `settled` is false while a slider is being dragged: those steps are no history.
  set(changes, { settled = true } = {}) {
    Object.assign(this.values, changes);
    this.write(settled);
    this.tell();
  }

  open(panel) {
    this.panel = panel;
    this.values = { ...this.defaults[panel] };
    this.write(true);
    this.tell();
  }

  // An address that differs from the one before a drag began becomes an entry of the history.
  write(settled) {
    const address = `${location.pathname}${this.query()}`;
    if (!this.dragging && `${location.pathname}${location.search}` === address) return;
    if (!settled && !this.dragging) {
      this.dragging = true;
      history.pushState(null, "", address);
    } else if (this.dragging) {
      history.replaceState(null, "", address);
      this.dragging = !settled;
    } else history.pushState(null, "", address);
  }

  query(panel = this.panel, values = this.values) {
    const query = new URLSearchParams();
    if (panel !== Object.keys(this.defaults)[0]) query.set("panel", panel);
    for (const [key, value] of Object.entries(values)) {
      if (value !== this.defaults[panel][key]) query.set(key, value);
    }
    return query.size ? `?${query}` : "";
  }

  tell() {
    for (const listener of this.listeners) listener(this);
  }
}
