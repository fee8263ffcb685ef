// Sliders and choices, each with a sentence for someone who meets the word for the first time.

import { element } from "./dom.js";

// A control is {key, label, hint, stops, show} for a slider over a list of values, or
// {key, label, hint, options: [[value, name], ...]} for a choice; `when` hides it.
export function buildControls(form, groups, state, limits) {
  const updates = [];
  form.replaceChildren(
    ...groups.map(({ title, controls }) =>
      element("fieldset", {}, element("legend", { text: title }),
        ...controls.map((control) => {
          const [made, update] = control.options
            ? choice(control, state)
            : slider(control, state, limits[control.key] ?? {});
          updates.push(() => {
            made.hidden = control.when ? !control.when(state.values) : false;
            update();
          });
          return made;
        }))),
  );
  return () => updates.forEach((update) => update());
}

function slider({ key, label, hint, stops, show }, state, { min, max }) {
  const id = `control-${key}`;
  const allowed = stops.filter((stop) => stop >= (min ?? -Infinity) && stop <= (max ?? Infinity));
  const input = element("input", { type: "range", id, min: 0, step: 1, "aria-describedby": `${id}-hint` });
  const output = element("output", { for: id });
  let values = allowed;
  const move = (settled) => state.set({ [key]: values[input.valueAsNumber] }, { settled });
  input.addEventListener("input", () => move(false));
  input.addEventListener("change", () => move(true));
  const made = element("div", { class: "control" },
    element("div", { class: "label" }, element("label", { for: id, text: label }), output),
    input,
    element("p", { class: "hint", id: `${id}-hint`, text: hint }));
  const update = () => {
    const value = state.values[key];
    // An address may have a value between two stops.
    values = allowed.includes(value) || typeof value !== "number"
      ? allowed : [...allowed, value].sort((a, b) => a - b);
    input.max = values.length - 1;
    input.valueAsNumber = Math.max(0, values.indexOf(value));
    const shown = typeof value === "number" ? show(value) : String(value);
    output.textContent = shown;
    input.setAttribute("aria-valuetext", shown);
  };
  return [made, update];
}

function choice({ key, label, hint, options }, state) {
  const id = `control-${key}`;
  const select = element("select", { id, "aria-describedby": `${id}-hint` },
    ...options.map(([value, name]) => element("option", { value, text: name })));
  select.addEventListener("change", () => state.set({ [key]: select.value }));
  const explained = Object.fromEntries(options.map(([value, , says]) => [value, says]));
  const more = element("p", { class: "hint", id: `${id}-hint` });
  const made = element("div", { class: "control" },
    element("div", { class: "label" }, element("label", { for: id, text: label })), select, more);
  const update = () => {
    select.value = state.values[key];
    more.textContent = explained[state.values[key]] ?? hint ?? "";
  };
  return [made, update];
}

export function range(low, high, step = 1) {
  const size = Math.round((high - low) / step);
  return Array.from({ length: size + 1 }, (_, index) => Number((low + index * step).toFixed(6)));
}
