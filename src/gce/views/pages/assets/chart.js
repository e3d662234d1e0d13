"use strict";
/* Small charts as SVG, drawn for the width they have, and drawn again when it changes. */

function niceTicks(low, high, count) {
  const span = high - low || 1, raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * span; v += step) found.push(Math.abs(v) < 1e-12 * span ? 0 : v);
  return found;
}

function brief(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(+value.toPrecision(3));
}

class Chart {
  /* spec: {series: [{name, style, x, y, steps, dots, quiet}], xLabel, yLabel, zero, square, circle, ticks: [[x, text]], label} */
  constructor(container, spec, onPick) {
    this.container = container;
    this.spec = spec;
    this.onPick = onPick;
    this.cursor = null;
    container.classList.add("chart");
    this.holder = document.createElement("div");
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    container.replaceChildren(this.holder, this.legend);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(container);
    this.draw();
  }

  set(spec) { this.spec = { ...this.spec, ...spec }; this.drawn = null; this.draw(); }

  point(step) {
    this.cursor = step;
    this.#cursor();
  }

  draw() {
    const width = Math.max(240, Math.floor(this.container.clientWidth)), spec = this.spec;
    if (this.drawn === width) return;
    this.drawn = width;
    const height = spec.square ? Math.min(width, 360) : Math.round(Math.max(170, Math.min(260, width * 0.5)));
    const box = { left: 52, right: width - 16, top: 26, bottom: height - 34 };
    const xs = spec.series.flatMap((s) => s.x), ys = spec.series.flatMap((s) => s.y).filter(Number.isFinite);
    let [x0, x1] = xs.length ? [Math.min(...span(xs)), Math.max(...span(xs))] : [0, 1];
    let [y0, y1] = ys.length ? [Math.min(...span(ys)), Math.max(...span(ys))] : [0, 1];
    if (spec.zero) y0 = Math.min(0, y0);
    if (spec.circle) {
      const reach = 1.08 * Math.max(1, ...span(xs).map(Math.abs), ...span(ys).map(Math.abs));
      [x0, x1, y0, y1] = [-reach, reach, -reach, reach];
      const side = Math.min(box.right - box.left, box.bottom - box.top), middle = (box.left + box.right) / 2;
      [box.left, box.right, box.bottom] = [middle - side / 2, middle + side / 2, box.top + side];
    } else {
      y1 += 0.06 * (y1 - y0 || 1);
      if (!spec.zero) y0 -= 0.06 * (y1 - y0);
      if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    }
    this.X = (v) => box.left + ((v - x0) / (x1 - x0)) * (box.right - box.left);
    this.Y = (v) => box.bottom - ((v - y0) / (y1 - y0)) * (box.bottom - box.top);
    this.box = box;
    this.range = [x0, x1];
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.label || spec.yLabel });
    for (const v of niceTicks(y0, y1, 4)) {
      element("line", { class: "grid", x1: box.left, x2: box.right, y1: this.Y(v), y2: this.Y(v) }, svg);
      element("text", { x: box.left - 6, y: this.Y(v) + 4, "text-anchor": "end" }, svg).textContent = brief(v);
    }
    const ticks = spec.ticks ?? niceTicks(x0, x1, Math.max(3, Math.min(8, Math.round(width / 90)))).map((v) => [v, brief(v)]);
    for (const [v, text] of ticks) {
      element("line", { class: "grid", x1: this.X(v), x2: this.X(v), y1: box.bottom, y2: box.bottom + 4 }, svg);
      element("text", { x: this.X(v), y: box.bottom + 16, "text-anchor": "middle" }, svg).textContent = text;
    }
    element("text", { x: (box.left + box.right) / 2, y: height - 3, "text-anchor": "middle" }, svg).textContent = spec.xLabel;
    element("text", { x: 2, y: 12 }, svg).textContent = spec.yLabel;
    if (spec.circle) element("circle", { class: "grid", fill: "none", cx: this.X(0), cy: this.Y(0), r: this.X(1) - this.X(0) }, svg);
    for (const s of spec.series) this.#series(svg, s);
    this.line = element("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" }, svg);
    if (this.onPick) {
      svg.style.cursor = "pointer";
      svg.addEventListener("click", (event) => {
        const place = svg.getBoundingClientRect();
        const x = ((event.clientX - place.left) * width / place.width - box.left) / (box.right - box.left);
        this.onPick(Math.round(this.range[0] + Math.min(1, Math.max(0, x)) * (this.range[1] - this.range[0])));
      });
    }
    this.holder.replaceChildren(svg);
    this.#legend();
    this.#cursor();
  }

  #series(svg, s) {
    if (s.dots) {
      s.x.forEach((x, k) => element("circle", { class: `dot-${s.style}`, cx: this.X(x), cy: this.Y(s.y[k]), r: s.dots, opacity: s.faint || 1 }, svg));
      if (!s.joined) return;
    }
    let path = "", pen = "M";
    s.x.forEach((x, k) => {
      const y = s.y[k];
      if (!Number.isFinite(y)) { pen = "M"; return; }
      path += `${pen}${this.X(x).toFixed(1)} ${this.Y(y).toFixed(1)}`;
      if (s.steps) path += `H${this.X(x + 1).toFixed(1)}`;
      pen = "L";
    });
    element("path", { class: `series ${s.style}`, d: path, opacity: s.faint || 1 }, svg);
  }

  #legend() {
    const named = this.spec.series.filter((s) => s.name);
    this.legend.replaceChildren(...named.map((s) => {
      const item = document.createElement("li"), mark = element("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" });
      if (s.dots && !s.joined) element("circle", { class: `dot-${s.style}`, cx: 11, cy: 5, r: 4 }, mark);
      else element("line", { class: `swatch ${s.style}`, x1: 0, x2: 22, y1: 5, y2: 5 }, mark);
      item.append(mark, s.name);
      return item;
    }));
  }

  #cursor() {
    if (!this.line || this.cursor === null) return;
    const x = this.X(this.cursor);
    this.line.setAttribute("visibility", this.cursor >= this.range[0] && this.cursor <= this.range[1] ? "visible" : "hidden");
    this.line.setAttribute("x1", x);
    this.line.setAttribute("x2", x);
  }
}

/* smallest and largest of a long list, for functions that take few arguments */
function span(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
  return values.length ? [low, high] : [];
}
