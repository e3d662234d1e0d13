"use strict";
/* A system as SVG: made once, then moved from step to step.

   A frame is {places, goal, ghost, weights, action}: places, goal and ghost hold a row a node, as the page's data do.
   The half of a link next to a node stands for the Gibbs weight that the node gives to the other end, the ring around a
   node for the weight it gives to itself. Thickness is the root of the weight, so that small ones are seen. */

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.appendChild(made);
  return made;
}

class Scene {
  constructor(container, scene, label) {
    this.scene = scene;
    this.count = scene.types.length;
    const [left, right, bottom, top] = scene.window;
    const ratio = Math.min(1.25, Math.max(0.45, (top - bottom) / (right - left)));
    this.width = 640;
    this.height = Math.round(this.width * ratio);
    this.scale = Math.min(this.width / (right - left), this.height / (top - bottom));
    this.middle = [(left + right) / 2, (bottom + top) / 2];
    this.size = Math.max(3, Math.min(15, (this.isNetwork ? 85 : 130) / Math.sqrt(this.count)));
    container.classList.add("scene");
    container.replaceChildren();
    this.svg = element("svg", { viewBox: `0 0 ${this.width} ${this.height}`, role: "img", "aria-label": label }, container);
    this.layers = {};
    for (const name of ["rail", "bodies", "links", "selves", "nodes", "ghosts", "goals", "pushes", "marks"])
      this.layers[name] = element("g", { class: name }, this.svg);
    this.#build();
  }

  x(value) { return this.width / 2 + (value - this.middle[0]) * this.scale; }
  y(value) { return this.height / 2 - (value - this.middle[1]) * this.scale; }

  /* the plane's coordinates of a pointer */
  at(event) {
    const [x, y] = this.#pixel(event);
    return [this.middle[0] + (x - this.width / 2) / this.scale, this.middle[1] - (y - this.height / 2) / this.scale];
  }

  #pixel(event) {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    return [place.x, place.y];
  }

  get isNetwork() { return this.scene.kind === "network"; }

  corners(row) {
    const found = [];
    for (let k = 0; k < row.length; k += 2) found.push([this.x(row[k]), this.y(row[k + 1])]);
    return found;
  }

  centre(node, row) {
    if (this.isNetwork) return [this.x(this.scene.places[node][0]), this.y(this.scene.places[node][1])];
    const corners = this.corners(row);
    return [0, 1].map((axis) => corners.reduce((sum, corner) => sum + corner[axis], 0) / corners.length);
  }

  #build() {
    const { scene, layers } = this;
    if (scene.rail !== undefined)
      element("line", { class: "rail", x1: 20, x2: this.width - 20, y1: this.y(scene.rail), y2: this.y(scene.rail) }, layers.rail);
    this.links = [];
    this.selves = new Map();
    scene.edges.forEach(([sender, receiver], k) => {
      if (sender === receiver) {
        this.selves.set(k, element("circle", { class: "self" }, layers.selves));
      } else {
        this.links.push({ k, sender, receiver, line: element("path", { class: "link" }, layers.links) });
      }
    });
    this.many = this.links.length > 400;
    layers.links.classList.toggle("many", this.many);
    const kinds = scene.types.map((type, i) => (scene.actuated[i] ? "actuated" : `type${type % 4}`));
    this.bodies = kinds.map((kind) =>
      scene.kind === "polygons"
        ? element("polygon", { class: `polygon ${kind}` }, layers.bodies)
        : this.isNetwork
          ? element("circle", { class: `network ${kind === "actuated" ? kind : ""}`, r: this.size }, layers.nodes)
          : element("circle", { class: `body ${kind}`, r: this.size }, layers.nodes));
    const shape = scene.kind === "polygons" ? "polygon" : "circle";
    this.ghosts = kinds.map(() => element(shape, { class: "ghost" }, layers.ghosts));
    this.goals = kinds.map(() => element(shape, { class: "goal" }, layers.goals));
    this.pushes = scene.actuated.map((on) => (on && scene.kind !== "polygons" ? element("line", { class: "push" }, layers.pushes) : null));
    // Values are written beside the nodes of a small network.
    this.values = this.isNetwork && this.count <= 30 ? kinds.map(() => element("text", {}, layers.marks)) : [];
    this.joints = [];
    this.mark = element("circle", { class: "chosen", r: 0 }, layers.marks);
    this.bent = null;
  }

  /* links that pass through a third node at some places are bent around it, from then on */
  bendAt(places) {
    const centres = places.map((row, i) => this.centre(i, row));
    if (this.isNetwork || this.many) this.bent = this.links.map(() => 0);
    else this.bent = this.links.map(({ sender, receiver }) => {
      const [a, b] = [centres[sender], centres[receiver]];
      const along = [b[0] - a[0], b[1] - a[1]], length = Math.hypot(...along) || 1;
      const through = centres.some((c, i) => {
        if (i === sender || i === receiver) return false;
        const t = ((c[0] - a[0]) * along[0] + (c[1] - a[1]) * along[1]) / length ** 2;
        const off = Math.abs((c[0] - a[0]) * along[1] - (c[1] - a[1]) * along[0]) / length;
        return t > 0.1 && t < 0.9 && off < 0.12 * length;
      });
      return through ? (sender < receiver ? 1 : -1) : 0;
    });
    if (!this.joints.length) this.#join();
  }

  /* a chain's goal is joined as its bodies are: by the links that pass through no other */
  #join() {
    const pairs = this.links.filter(({ sender, receiver }, k) => sender < receiver && !this.bent[k]);
    if (this.scene.kind === "disks" && pairs.length <= this.count)
      this.joints = pairs.map(({ sender, receiver }) => ({ sender, receiver, line: element("line", { class: "goal joint" }, this.layers.goals) }));
  }

  show(frame) {
    const centres = frame.places.map((row, i) => this.centre(i, row));
    if (!this.bent) this.bendAt(frame.places);
    frame.places.forEach((row, i) => this.#place(this.bodies[i], i, row, this.size));
    if (this.isNetwork) frame.places.forEach((row, i) => this.bodies[i].setAttribute("style", `fill:${this.colour(row[0], frame.goal?.[i]?.[0])}`));
    this.values.forEach((text, i) => {
      text.textContent = frame.places[i][0] === null ? "" : brief(frame.places[i][0]);
      text.setAttribute("x", Math.min(centres[i][0] + 1.8 * this.size, this.width - 60));
      text.setAttribute("y", centres[i][1] - 1.8 * this.size);
    });
    if (this.scene.kind === "polygons" && frame.action)
      this.bodies.forEach((body, i) => this.scene.actuated[i] && body.setAttribute("fill-opacity", 0.35 + 0.6 * Math.min(1, Math.max(0, (frame.action[i] + 1) / 2))));
    this.#shadow(this.ghosts, frame.ghost, frame.goal, 1.45, true);
    this.#shadow(this.goals, frame.goal, frame.goal, 1.0, false);
    for (const { sender, receiver, line } of this.joints) {
      const ends = [sender, receiver].map((i) => (frame.goal && !frame.goal[i].includes(null) ? this.centre(i, frame.goal[i]) : null));
      line.setAttribute("visibility", ends[0] && ends[1] ? "visible" : "hidden");
      if (ends[0] && ends[1]) ["x", "y"].forEach((axis, c) => ends.forEach((end, k) => line.setAttribute(axis + (k + 1), end[c].toFixed(1))));
    }
    this.#links(frame, centres);
    this.pushes.forEach((push, i) => push && this.#push(push, centres[i], frame.action ? frame.action[i] : 0));
    if (this.chosen !== undefined) this.#move(this.mark, centres[this.chosen], this.size + 6);
  }

  #place(body, node, row, radius) {
    body.classList.toggle("free", row.includes(null)); // a goal that leaves the node free
    if (this.scene.kind === "polygons") body.setAttribute("points", this.corners(row).map((c) => c.map((v) => v.toFixed(1)).join(",")).join(" "));
    else this.#move(body, this.centre(node, row), radius);
  }

  #move(circle, [x, y], radius) {
    circle.setAttribute("cx", x.toFixed(1));
    circle.setAttribute("cy", y.toFixed(1));
    circle.setAttribute("r", radius);
  }

  #shadow(shapes, rows, goal, grown, coloured) {
    shapes.forEach((shape, i) => {
      const visible = rows && (!this.isNetwork || coloured);
      shape.setAttribute("visibility", visible ? "visible" : "hidden");
      if (!visible) return;
      this.#place(shape, i, rows[i], this.size * (this.isNetwork ? grown : 1));
      if (this.isNetwork) shape.setAttribute("style", `stroke:${this.colour(rows[i][0], goal?.[i]?.[0])};stroke-dasharray:none;stroke-width:3`);
    });
  }

  /* blue below the goal, pale at it, red above; this.span saturates; grey where there is no goal */
  colour(value, goal) {
    if (value === null || goal === null) return "rgb(190,190,186)";
    const share = Math.max(-1, Math.min(1, (value - (goal ?? 0)) / (this.span || 1)));
    const [from, to] = [[238, 236, 228], share > 0 ? [196, 52, 48] : [44, 96, 178]];
    return `rgb(${from.map((v, k) => Math.round(v + Math.abs(share) * (to[k] - v))).join(",")})`;
  }

  #links(frame, centres) {
    const thickest = this.many ? 5 : 10;
    this.links.forEach(({ k, sender, receiver, line }, index) => {
      const [b, a] = [centres[sender], centres[receiver]], bend = this.bent[index] * 0.22;
      const control = [(a[0] + b[0]) / 2 + bend * (b[1] - a[1]), (a[1] + b[1]) / 2 - bend * (b[0] - a[0])];
      const half = [0, 1].map((i) => (a[i] + 2 * control[i] + b[i]) / 4);
      const lead = [0, 1].map((i) => (a[i] + control[i]) / 2);
      line.setAttribute("d", `M${a.map((v) => v.toFixed(1))}Q${lead.map((v) => v.toFixed(1))} ${half.map((v) => v.toFixed(1))}`);
      line.setAttribute("stroke-width", frame.weights ? Math.max(0.5, thickest * Math.sqrt(frame.weights[k])).toFixed(2) : 1);
      line.classList.toggle("of-chosen", receiver === this.chosen);
    });
    for (const [k, ring] of this.selves) {
      const node = this.scene.edges[k][0], width = frame.weights ? thickest * Math.sqrt(frame.weights[k]) : 0;
      ring.setAttribute("visibility", frame.weights ? "visible" : "hidden");
      ring.setAttribute("stroke-width", width.toFixed(2));
      this.#move(ring, centres[node], this.size + width / 2);
    }
  }

  #push(push, [x, y], share) {
    push.setAttribute("visibility", Math.abs(share) > 0.01 ? "visible" : "hidden");
    const along = this.scene.rail !== undefined, reach = Math.max(-1, Math.min(1, share)) * (along ? 90 : 2.2 * this.size);
    const [x0, y0] = along ? [x, y - this.size - 10] : [x + 1.8 * this.size, y];
    for (const [key, value] of Object.entries({ x1: x0, y1: y0, x2: along ? x0 + reach : x0, y2: along ? y0 : y0 - reach })) push.setAttribute(key, value.toFixed(1));
  }

  nearest(event, rows) {
    const [x, y] = this.#pixel(event);
    const far = rows.map((row, i) => { const c = this.centre(i, row); return Math.hypot(c[0] - x, c[1] - y); });
    return far.indexOf(Math.min(...far));
  }
}
