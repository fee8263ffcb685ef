// Elements, and figures for people.

// element("p", {class: "hint", text: "..."}, child, ...): properties that exist are set, others
// become attributes.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// A part of a track, `share` of its length.
export function bar(share, className) {
  const made = element("span", { class: `bar ${className}` });
  made.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  return made;
}

const whole = new Intl.NumberFormat("en");
export const count = (value) => whole.format(Math.round(value));
export function percent(share) {
  if (share >= 2) return `${count(100 * share)} %`;
  return `${(100 * share).toFixed(share < 0.0095 && share > 0 ? 2 : 1)} %`;
}
export const times = (value) => `${value.toFixed(2)}×`;

export function seconds(value) {
  if (value >= 100) return `${count(value)} s`;
  if (value >= 1) return `${digits(value)} s`;
  return `${digits(value * 1e3)} ms`;
}

export function bytes(value) {
  const units = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  for (const [factor, unit] of units) if (value >= factor) return `${digits(value / factor)} ${unit}`;
  return `${count(value)} B`;
}

export function short(value) {
  if (value >= 1e6) return `${digits(value / 1e6)}M`;
  return value >= 1e4 ? `${count(value / 1e3)}k` : count(value);
}

// Three digits at the most, without zeros that say nothing.
function digits(value) {
  const places = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return whole.format(Number(value.toFixed(places)));
}
