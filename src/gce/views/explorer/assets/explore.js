"use strict";
/* The explorer: what was picked goes to the server, and what it sends back is drawn as it comes. */

const byId = (id) => document.getElementById(id);
const TOKEN = new URLSearchParams(location.search).get("token") || "";
const PAUSE = 150; // milliseconds between two looks at a job

const MODES = {
  plane: { all: "moves all of it", near: "bends it near the pointer" },
  network: { all: "changes all", near: "changes one" },
};

let choices = null, system = null, scene = null, chart = null, goal = null, mode = "all";
let run = null; // {steps, plans, shown}: what was sent of the last plan, and the step drawn
let expected = null; // how near the model thinks it can get to the goal as it is
let busy = false, job = null; // busy: from the moment that a job is asked for
let madeFor = ""; // the request that the system was made for
let wanted = false; // something else was picked while a job was at work
let typing = null; // the timer of a number that is being typed

/* ---- the server ---- */

async function ask(name, request = {}) {
  let answer;
  try {
    answer = await fetch(`/api/${name}`, { method: "POST", headers: { "X-Token": TOKEN, "Content-Type": "application/json" }, body: JSON.stringify(request) });
  } catch {
    throw new Error("the server does not answer; is gce explore still running in its terminal?");
  }
  let found;
  try {
    found = await answer.json();
  } catch {
    throw new Error(`the server sent something that is not an answer (status ${answer.status})`);
  }
  if (!answer.ok) throw new Error(found.error);
  return found;
}

/* beside the field that it is about, else above the picture */
function complain(error) {
  byId("bar").value = 0;
  byId("words").textContent = "failed";
  const field = ["objects", "seed", "horizon"].find((name) => error.message.match(new RegExp(`^(the )?${name} is`)));
  const place = byId(field ? `${field}-wrong` : "alarm");
  place.textContent = error.message;
  place.hidden = false;
  if (field) byId(field).setAttribute("aria-invalid", "true");
  place.scrollIntoView({ block: "nearest" });
}

function forgive() {
  byId("alarm").hidden = true;
  for (const name of ["objects", "seed", "horizon"]) {
    byId(`${name}-wrong`).textContent = "";
    byId(name).removeAttribute("aria-invalid");
  }
}

/* a field's number; what cannot be is refused here already */
function whole(name) {
  const field = byId(name), value = field.valueAsNumber;
  if (!field.checkValidity() || !Number.isInteger(value)) throw new Error(`${name} is ${field.value || "empty"}, expected a whole number from ${field.min} to ${field.max}`);
  return value;
}

function horizon() {
  try {
    return whole("horizon");
  } catch {
    const field = byId("horizon");
    throw new Error(`the horizon is ${field.value || "empty"}, expected ${field.min} to ${field.max} steps`);
  }
}

async function looked(name, request, onStart, onLook = () => {}) {
  let since = 0, look;
  const number = (await ask(name, request)).job;
  onStart(number);
  do {
    await new Promise((done) => setTimeout(done, PAUSE));
    look = await ask("look", { job: number, since });
    since += look.items.length;
    onLook(look);
  } while (look.state === "working");
  return look;
}

/* start a job and look at it until it ends; onItem gets what it adds on the way */
async function work(name, request, onItem = () => {}) {
  forgive();
  busy = true;
  buttons();
  byId("words").textContent = "starting"; // kernels may have to be compiled first
  byId("bar").removeAttribute("value");
  let look;
  try {
    clearTimeout(asking);
    look = await looked(name, request, (number) => { job = number; buttons(); }, (now) => {
      now.items.forEach(onItem);
      if (now.share === null) byId("bar").removeAttribute("value");
      else byId("bar").value = now.share;
      byId("words").textContent = `${now.words}, ${now.seconds.toFixed(1)} s${left(now)}`;
    });
  } finally {
    [busy, job] = [false, null];
    buttons();
  }
  byId("bar").value = look.state === "done" ? 1 : 0;
  if (look.state === "failed") throw new Error(look.result);
  byId("words").textContent = `${look.state}, ${look.seconds.toFixed(1)} s`;
  return look.state === "done" ? look.result : null;
}

/* ---- how near the model thinks it can get, asked whenever the goal was moved ---- */

let asking = null; // the timer until then
function hint() {
  clearTimeout(asking);
  expected = null;
  if (!system || busy) return;
  byId("reach").textContent = "Asking the model how near it can get …";
  asking = setTimeout(reached, 250);
}

async function reached() {
  if (!system || busy || run) return;
  const [wish, of] = [goal, system];
  try {
    const look = await looked("reach", { goal, horizon: horizon() }, () => {});
    if (look.state !== "done" || goal !== wish || system !== of || run) return;
    expected = look.result;
    const [end, nothing] = [expected.distances.at(-1), expected.nothing.at(-1)], unit = system.words[3];
    byId("reach").textContent = `The model expects ${system.words[2]} to end ${brief(end)} ${unit} from this goal`
      + (nothing > 0 ? `, ${brief((100 * end) / nothing)} % of doing nothing (${brief(nothing)} ${unit}).` : ".");
    curves(expected.nothing);
    draw();
  } catch (error) {
    if (!busy && !run) byId("reach").textContent = "";
    if (error.message.includes("horizon")) complain(error);
  }
}

/* what is left of a job that takes a while, if it goes on as it did */
function left({ seconds, share }) {
  return seconds > 2 && share > 0.05 && share < 1 ? `, about ${Math.ceil((seconds * (1 - share)) / share)} s left` : "";
}

function buttons() {
  byId("plan").disabled = busy || system === null;
  byId("stop").disabled = job === null;
  byId("again").disabled = run === null;
  byId("step").disabled = run === null;
  byId("reset").disabled = busy || system === null;
}

/* ---- picking ---- */

const world = () => choices.worlds.find((w) => w.name === byId("world").value);

function fill(select, pairs) { select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value))); }

function worldPicked() {
  const { objects, potentials, note, counted } = world();
  fill(byId("potential"), Object.entries(potentials));
  byId("counted").textContent = counted;
  byId("objects-field").hidden = objects === null; // a test case has its own
  byId("seed-field").hidden = counted === "episode";
  byId("potential-field").hidden = Object.keys(potentials).length < 2;
  if (objects) Object.assign(byId("objects"), { min: objects.low, max: objects.high, value: objects.start });
  byId("pick-note").textContent = note;
}

function offered(worlds) {
  const kinds = [...new Set(worlds.map((w) => w.kind))];
  byId("world").replaceChildren(...kinds.map((kind) => {
    const group = document.createElement("optgroup");
    group.label = kind;
    group.append(...worlds.filter((w) => w.kind === kind).map((w) => new Option(w.name.split("/").at(-1), w.name)));
    return group;
  }));
}

/* one at a time: what is picked while a system is made is made after it */
async function prepare() {
  clearTimeout(typing); // what was typed is read here
  typing = null;
  let request;
  try {
    forgive();
    request = { world: byId("world").value, objects: world().objects ? whole("objects") : 0, seed: whole("seed"), potential: byId("potential").value };
  } catch (error) {
    complain(error);
    return;
  }
  if (JSON.stringify(request) === madeFor) { wanted = false; return; }
  byId("reach").textContent = ""; // it is of another system
  if (busy) {
    wanted = true;
    if (job !== null) await ask("stop", { job }).catch(() => {});
    return;
  }
  [system, madeFor, run, expected] = [null, "", null, null];
  rest();
  try {
    const found = await work("prepare", request);
    if (found) made(found, request);
  } catch (error) {
    complain(error);
  }
  await next();
}

async function next() {
  if (wanted) { wanted = false; await prepare(); }
}

function made(found, request) {
  [system, madeFor] = [found, JSON.stringify(request)];
  run = null;
  goal = found.goal.map((row) => [...row]);
  scene = new Scene(byId("picture"), found.scene, "the system and its goal");
  scene.span = found.span;
  scene.bendAt(found.start);
  byId("picture").classList.add("draggable");
  const free = [0, 1].some((axis) => found.still.every((row) => row.every((fixed, k) => k % 2 !== axis || !fixed)));
  setMode(scene.isNetwork || free ? "all" : "near");
  const one = found.words[0], weighed = found.weights.length > 0;
  held = 0;
  byId("picture").setAttribute("aria-label", scene.isNetwork
    ? `the goal: drag a ${one}, or choose one with left and right and move its goal with up and down` : "the goal: drag it, or move it with the arrow keys");
  byId("caption").textContent = scene.isNetwork
    ? `Drag a ${one} up or down to raise or lower its goal for ${found.value}. Colour: above (red) or below (blue) the goal, by up to ${brief(found.span)} ${found.words[3]}; outer ring: as the plan expected.`
    : "Amber: the goal; dashed: what the plan expects; red: what can be pushed."
      + (weighed ? " The thicker the half of a link next to a node, or the ring around it, the more Gibbs weight that node gives to the other end, or to itself." : "");
  byId("grip").textContent = "";
  byId("result-note").textContent = found.simulated ? "" : "This system has no simulator here: what is shown is what the model expects.";
  spread(found.spread);
  chart = null;
  byId("distance").replaceChildren();
  draw();
  buttons();
  hint();
}

/* what the Gibbs weights do here, where there are any */
function spread(told, others = []) {
  const weights = told ? [["Gibbs weight on itself, mean", brief(told.self)], ["effective neighbours", brief(told.effective_neighbours)]] : [];
  byId("figures").replaceChildren(...[...others, ...weights].map(([name, value]) => {
    const box = document.createElement("div"), term = document.createElement("dt"), what = document.createElement("dd");
    [term.textContent, what.textContent] = [name, value];
    box.append(term, what);
    return box;
  }));
}

/* ---- the picture ---- */

const places = (rows) => rows.map((row) => system.shown.map((c) => row[c]));

function draw() {
  if (!system) return;
  const step = run && run.steps.length ? run.steps[Math.min(run.shown, run.steps.length - 1)] : null;
  const plan = step ? run.plans.filter((p) => p.at <= step.step).at(-1) : null;
  scene.show({
    places: step ? step.places : system.start,
    goal: places(goal),
    ghost: plan ? plan.frames[step.step - plan.at] : expected ? expected.frame : null,
    weights: system.weights.length ? (step ? step.weights : system.weights) : null,
    action: step && step.action.length ? step.action : null,
  });
  if (chart && step) chart.point(step.step);
  Object.assign(byId("step"), { max: run ? Math.max(1, run.steps.length - 1) : 1, value: step ? step.step : 0 });
  byId("clock").textContent = step ? `step ${step.step}, ${(step.step * system.dt).toFixed(2)} s` : "";
}

function setMode(name) {
  mode = name;
  byId("modes").replaceChildren(...Object.entries(MODES[scene.isNetwork ? "network" : "plane"]).map(([value, text]) => {
    const label = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "mode", value, checked: value === name });
    input.addEventListener("change", () => { mode = value; });
    label.append(input, `dragging ${text}${scene.isNetwork ? ` ${system.words[value === "all" ? 1 : 0]}` : ""}`);
    return label;
  }));
}

/* Where each point of the goal goes when one is dragged by (dx, dy): all of it moves, where nothing is fixed along an
   axis; or what is near the pointer follows, the less the further away. A goal that was dragged is one at rest. */
function dragged(from, grabbed, [dx, dy], start) {
  if (scene.isNetwork) {
    const change = (dy * system.span) / 0.5;
    return from.map((row, i) => row.map((value, c) => (c === 0 ? (mode === "all" || i === grabbed ? value + change : value) : 0)));
  }
  const locked = [0, 1].map((axis) => system.still.some((row) => row.some((fixed, k) => k % 2 === axis && fixed)));
  const [left, right, bottom, top] = system.scene.window, reach = 0.15 * Math.max(right - left, top - bottom);
  return from.map((row, i) => {
    const moved = row.map((value, c) => (system.positions[c] ? value : 0));
    for (let k = 0; k < system.shown.length; k += 2) {
      const [cx, cy] = [system.shown[k], system.shown[k + 1]];
      const far = Math.hypot(row[cx] - start[0], row[cy] - start[1]);
      const share = mode === "all" ? 1 : Math.exp(-((far / reach) ** 2) / 2);
      if (mode === "all" ? !locked[0] : !system.still[i][k]) moved[cx] += share * dx;
      if (mode === "all" ? !locked[1] : !system.still[i][k + 1]) moved[cy] += share * dy;
    }
    return moved;
  });
}

const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
byId("picture").addEventListener("keydown", (event) => {
  if (!KEYS[event.key] || !system || busy) return;
  event.preventDefault();
  const [left, right] = system.scene.window, reach = (right - left) / 40, before = mode, count = goal.length;
  if (scene.isNetwork && KEYS[event.key][0]) held = (held + KEYS[event.key][0] + count) % count;
  else {
    if (!scene.isNetwork) mode = "all"; // there is no pointer that anything could be near to
    goal = dragged(goal, held, KEYS[event.key].map((way) => way * reach), [0, 0]);
    mode = before;
    moved();
  }
  gripped();
});

let held = 0; // the node that the keys move
const node = (i) => `${system.words[0]} ${system.nodes[i]}`;

/* the goal in numbers */
function gripped() {
  const [, , , unit] = system.words, now = (run ? run.steps.at(-1)?.places : null) ?? system.start;
  scene.chosen = scene.isNetwork ? held : undefined;
  byId("grip").textContent = scene.isNetwork
    ? `Goal of ${mode === "all" ? "all, here of " : ""}${node(held)}: ${goal[held][0].toFixed(3)} ${unit}; now ${now[held][0].toFixed(3)}.`
    : `Goal of ${node(held)}: ${system.shown.slice(0, 2).map((c) => goal[held][c].toFixed(2)).join(", ")} ${unit}.`;
  draw();
}

function moved() {
  if (run) { run = null; rest(); spread(system.spread); byId("result-note").textContent = ""; }
  buttons();
  hint();
}

/* mouse, pen or finger: one at a time; a second finger neither drags nor ends what the first does */
let drag = null;
byId("picture").addEventListener("pointerdown", (event) => {
  if (!system || busy || drag || event.button > 0) return;
  event.preventDefault();
  byId("picture").setPointerCapture(event.pointerId);
  drag = { pointer: event.pointerId, start: scene.at(event), from: goal, grabbed: scene.nearest(event, places(goal)) };
  held = drag.grabbed;
  gripped();
});
byId("picture").addEventListener("pointermove", (event) => {
  if (event.pointerId !== drag?.pointer) return;
  const at = scene.at(event);
  goal = dragged(drag.from, drag.grabbed, [at[0] - drag.start[0], at[1] - drag.start[1]], drag.start);
  moved();
  gripped();
});
for (const name of ["pointerup", "pointercancel"]) byId("picture").addEventListener(name, (event) => {
  if (event.pointerId === drag?.pointer) drag = null;
});

/* ---- planning ---- */

async function plan() {
  if (typing !== null) await prepare(); // a number that was just typed is of the system to plan for
  if (!system || busy) return;
  let steps;
  try {
    steps = horizon();
  } catch (error) {
    complain(error);
    return;
  }
  run = { steps: [], plans: [], shown: 0 };
  expected = chart = null;
  byId("result-note").textContent = byId("reach").textContent = "";
  spread(system.spread);
  watch();
  try {
    const result = await work("plan", { goal, horizon: steps }, (item) => {
      if (!run) return;
      if (item.kind === "plan") run.plans.push(item);
      else run.steps.push(item);
      if (run.plans.length) curves(null);
    });
    if (result && run) { curves(result.nothing); told(result); }
  } catch (error) {
    complain(error);
  }
  if (run && !run.steps.length) { run = null; rest(); buttons(); draw(); }
  await next();
}

/* steps are drawn in the time of the system, or as they come where that is slower */
let frame = null, begun = 0;
function watch() {
  rest();
  if (run) run.shown = 0;
  begun = performance.now();
  frame = requestAnimationFrame(tick);
  byId("again").textContent = "Pause";
}

function tick(now) {
  const length = 1000 * system.dt, last = run.steps.length - 1, due = Math.max(0, Math.floor((now - begun) / length));
  if (due > last) begun = now - length * Math.max(0, last); // it waits for the next step
  if (last >= 0 && run.shown !== Math.min(due, last)) { run.shown = Math.min(due, last); draw(); }
  if (busy || run.shown < last) frame = requestAnimationFrame(tick);
  else rest();
}

function rest() {
  if (frame !== null) cancelAnimationFrame(frame);
  frame = null;
  byId("again").textContent = "Watch again";
}

function showStep(step) {
  rest();
  if (run) { run.shown = Math.max(0, Math.min(step, run.steps.length - 1)); draw(); }
}

function curves(nothing) {
  const count = (values, from = 0) => values.map((_, k) => from + k), name = system.simulated ? "doing nothing" : "doing nothing, as expected";
  const real = run && system.simulated ? [{ name: "what happened", style: "real", x: run.steps.map((s) => s.step), y: run.steps.map((s) => s.distance) }] : [];
  const plans = run ? run.plans : [{ at: 0, distances: expected.distances }];
  const series = [
    ...(nothing ? [{ name, style: "nothing", x: count(nothing), y: nothing }] : []),
    ...real,
    ...plans.map((p, k) => ({ name: k ? null : run ? "as planned" : "as the model expects", style: "plan", x: count(p.distances, p.at), y: p.distances })),
  ];
  const [, , places, unit] = system.words;
  if (!chart) chart = new Chart(byId("distance"), { series, xLabel: "step", yLabel: `rms distance of ${places} from the goal, ${unit}`, zero: true }, showStep);
  else chart.set({ series });
}

function told(result) {
  const f = result.figures, share = (value) => `${(100 * value).toPrecision(3)} %`, found = [];
  const last = run.steps.at(-1).distance, [, , places, unit] = system.words, nothing = result.nothing.at(-1);
  const seconds = result.plan_seconds.reduce((a, b) => a + b, 0);
  if (f.voltage_error !== undefined) found.push(["voltage error, of that at the start", share(f.voltage_error)]);
  else if (f.control_error_over_nothing !== undefined) found.push(["of the error of doing nothing", share(f.control_error_over_nothing)]);
  found.push([`${places}: rms at the end, of doing nothing`, `${brief(last)}, ${brief(nothing)} ${unit}`]);
  if (f.control_error !== undefined) found.push(["error at the end, |o − goal| / |goal|", brief(f.control_error)]);
  if (f.cost !== undefined) found.push(["cost", brief(f.cost)]);
  found.push([result.plan_seconds.length === 1 ? "planning, CPU time" : `${result.plan_seconds.length} plans, CPU time`, `${brief(seconds)} s`]);
  spread(system.spread, found);
  const notes = result.harm.map((sentence) => `Note: ${sentence}.`);
  if (result.status !== "solved") notes.unshift(`The planner: ${result.status}. ${result.advice}`);
  byId("result-note").textContent = notes.join(" ");
}

/* ---- all of it ---- */

byId("plan").addEventListener("click", plan);
byId("stop").addEventListener("click", () => job !== null && ask("stop", { job }).catch(complain));
byId("again").addEventListener("click", () => (frame === null ? watch() : rest()));
byId("step").addEventListener("input", (event) => showStep(Number(event.target.value)));
byId("horizon").addEventListener("input", forgive); // before a click: what goes away would move the button from under it
byId("horizon").addEventListener("change", () => { if (!run) hint(); });
byId("reset").addEventListener("click", () => { goal = system.goal.map((row) => [...row]); moved(); draw(); });
byId("world").addEventListener("change", () => { worldPicked(); prepare(); });
byId("potential").addEventListener("change", prepare);
for (const id of ["objects", "seed"]) byId(id).addEventListener("input", () => {
  clearTimeout(typing);
  clearTimeout(asking);
  byId("reach").textContent = "";
  typing = setTimeout(prepare, 400); // once the number is whole
});

(async () => {
  try {
    choices = await ask("choices");
    const { low, high, start } = choices.horizons;
    Object.assign(byId("horizon"), { min: low, max: high, value: start });
    offered(choices.worlds);
    worldPicked();
    await prepare();
  } catch (error) {
    complain(error);
  }
})();
