// Curves, drawn by uPlot in the page's colours.

import uPlot from "/static/vendor/uplot/uPlot.esm.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// On a logarithmic scale, lines at powers of ten are enough.
const powersOfTen = ({ grid, ticks }) => {
  const filter = (_, splits) => splits.map((value) => Number.isInteger(Math.log10(value)) ? value : null);
  return { filter, grid: { ...grid, filter }, ticks: { ...ticks, filter } };
};
const dark = matchMedia("(prefers-color-scheme: dark)");

// Redraws when the page gets wider or darker. `series` are {label, colour, dash}; colours are names
// of CSS variables. `marker` returns the x where a line stands, or null.
export class Curves {
  constructor(place, { series, scales, axes, height, marker, onpick }) {
    Object.assign(this, { place, series, scales, axes, height, marker, onpick });
    this.data = null;
    this.rebuild = () => { this.plot?.destroy(); this.plot = null; if (this.data) this.show(this.data); };
    dark.addEventListener("change", this.rebuild);
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(place);
  }

  show(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data);
    else if (this.place.clientWidth > 0) this.plot = new uPlot(this.options(), data, this.place);
  }

  redraw() {
    this.plot?.redraw(false, false);
  }

  close() {
    dark.removeEventListener("change", this.rebuild);
    this.sizes.disconnect();
    this.plot?.destroy();
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
    else if (!this.plot && this.data) this.show(this.data);
  }

  options() {
    const axis = { stroke: colour("--soft"), font: "12px system-ui, sans-serif",
      grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    return {
      width: this.place.clientWidth, height: this.height, legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
      scales: this.scales,
      axes: this.axes.map(({ isLog, ...own }) => ({ ...axis, ...own, ...(isLog ? powersOfTen(axis) : {}) })),
      series: [{}, ...this.series.map((each) => ({
        label: each.label, stroke: colour(each.colour), width: 2, dash: each.dash,
        points: { show: false },
      }))],
      hooks: { draw: [(plot) => this.mark(plot)], ready: [(plot) => this.listen(plot)] },
    };
  }

  listen(plot) {
    if (!this.onpick) return;
    plot.over.style.cursor = "pointer";
    plot.over.addEventListener("click", (event) => this.onpick(plot.posToVal(event.offsetX, "x")));
  }

  mark(plot) {
    const at = this.marker?.();
    if (at === null || at === undefined) return;
    const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--ink");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }
}
