"use strict";
/* The explorer: what was picked goes to the server, and what it sends back is drawn as it comes. */

const byId = (id) => document.getElementById(id);
const TOKEN = new URLSearchParams(location.search).get("token") || "";
const PAUSE = 150; // milliseconds between two looks at a job

const MODES = {
  plane: { all: "moves all of it", near: "bends it near the pointer" },
  network: { all: "changes all nodes", near: "changes one node" },
};

let choices = null, system = null, scene = null, chart = null, goal = null, mode = "all";
let run = null; // {steps, plans, shown}: what was sent of the last plan, and the step drawn
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

function complain(error) {
  byId("bar").value = 0;
  byId("alarm").textContent = error.message;
  byId("alarm").hidden = false;
  byId("words").textContent = "failed";
}

/* start a job and look at it until it ends; onItem gets what it adds on the way */
async function work(name, request, onItem = () => {}) {
  byId("alarm").hidden = true;
  busy = true;
  buttons();
  let since = 0, look;
  try {
    job = (await ask(name, request)).job;
    buttons();
    do {
      await new Promise((done) => setTimeout(done, PAUSE));
      look = await ask("look", { job, since });
      since += look.items.length;
      look.items.forEach(onItem);
      if (look.share === null) byId("bar").removeAttribute("value");
      else byId("bar").value = look.share;
      byId("words").textContent = `${look.words}, ${look.seconds.toFixed(1)} s${left(look)}`;
    } while (look.state === "working");
  } finally {
    [busy, job] = [false, null];
    buttons();
  }
  byId("bar").value = look.state === "done" ? 1 : 0;
  if (look.state === "failed") throw new Error(look.result);
  byId("words").textContent = `${look.state}, ${look.seconds.toFixed(1)} s`;
  return look.state === "done" ? look.result : null;
}

/* what is left of a job that takes a while, if it goes on as it did */
function left({ seconds, share }) {
  return seconds > 2 && share > 0.05 && share < 1 ? `, about ${Math.ceil((seconds * (1 - share)) / share)} s left` : "";
}

function buttons() {
  byId("plan").disabled = busy || system === null;
  byId("stop").disabled = job === null;
  byId("again").disabled = busy || run === null;
  byId("reset").disabled = busy || system === null;
}

/* ---- picking ---- */

const world = () => choices.worlds.find((w) => w.name === byId("world").value);

function fill(select, pairs) { select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value))); }

function worldPicked() {
  const { objects, potentials, trained, note } = world();
  fill(byId("potential"), Object.entries(potentials));
  Object.assign(byId("objects"), { min: objects.low, max: objects.high, value: objects.start });
  byId("pick-note").textContent = `The model was trained on ${trained[0]} to ${trained[1]} objects. ${note}`;
}

/* one at a time: what is picked while a system is made is made after it */
async function prepare() {
  clearTimeout(typing); // what was typed is read here
  const request = { world: byId("world").value, objects: byId("objects").valueAsNumber, seed: byId("seed").valueAsNumber, potential: byId("potential").value };
  if (JSON.stringify(request) === madeFor) { wanted = false; return; }
  if (busy) {
    wanted = true;
    if (job !== null) await ask("stop", { job }).catch(() => {});
    return;
  }
  [system, madeFor] = [null, ""];
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
  byId("caption").textContent = scene.isNetwork
    ? `Drag a node up or down to raise or lower its goal for ${found.value}. Colour: above (red) or below (blue) the goal, by up to ${brief(found.span)}; outer ring: as the plan expected.`
    : "Amber: the goal; dashed: what the plan expects; red: what can be pushed. The thicker the half of a link next to a node, or the ring around it, the more Gibbs weight that node gives to the other end, or to itself.";
  byId("figures").replaceChildren();
  byId("result-note").textContent = "Nothing was planned yet.";
  chart = null;
  byId("distance").replaceChildren();
  draw();
  buttons();
}

/* ---- the picture ---- */

const places = (rows) => rows.map((row) => system.shown.map((c) => row[c]));

function draw() {
  const step = run ? run.steps[Math.min(run.shown, run.steps.length - 1)] : null;
  const plan = step ? run.plans.filter((p) => p.at <= step.step).at(-1) : null;
  scene.show({
    places: step ? step.places : system.start,
    goal: places(goal),
    ghost: plan ? plan.frames[step.step - plan.at] : null,
    weights: step ? step.weights : system.weights,
    action: step && step.action.length ? step.action : null,
  });
  if (chart && step) chart.point(step.step);
}

function setMode(name) {
  mode = name;
  byId("modes").replaceChildren(...Object.entries(MODES[scene.isNetwork ? "network" : "plane"]).map(([value, text]) => {
    const label = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "mode", value, checked: value === name });
    input.addEventListener("change", () => { mode = value; });
    label.append(input, "dragging " + text);
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
  const [left, right] = system.scene.window, reach = (right - left) / 40, before = mode;
  mode = "all"; // there is no pointer that anything could be near to
  goal = dragged(goal, 0, KEYS[event.key].map((way) => way * reach), [0, 0]);
  mode = before;
  run = null;
  draw();
  buttons();
});

/* mouse, pen or finger: one at a time; a second finger neither drags nor ends what the first does */
let drag = null;
byId("picture").addEventListener("pointerdown", (event) => {
  if (!system || busy || drag || event.button > 0) return;
  event.preventDefault();
  byId("picture").setPointerCapture(event.pointerId);
  drag = { pointer: event.pointerId, start: scene.at(event), from: goal, grabbed: scene.nearest(event, places(goal)) };
  if (run) { run = null; buttons(); }
});
byId("picture").addEventListener("pointermove", (event) => {
  if (event.pointerId !== drag?.pointer) return;
  const at = scene.at(event);
  goal = dragged(drag.from, drag.grabbed, [at[0] - drag.start[0], at[1] - drag.start[1]], drag.start);
  draw();
});
for (const name of ["pointerup", "pointercancel"]) byId("picture").addEventListener(name, (event) => {
  if (event.pointerId === drag?.pointer) drag = null;
});

/* ---- planning ---- */

async function plan() {
  const horizon = byId("horizon").valueAsNumber;
  run = { steps: [], plans: [], shown: 0 };
  chart = null;
  byId("figures").replaceChildren();
  byId("result-note").textContent = "";
  watch();
  try {
    const result = await work("plan", { goal, horizon }, (item) => {
      if (item.kind === "plan") run.plans.push(item);
      else run.steps.push(item);
      if (run.plans.length) curves(null);
    });
    if (result) { curves(result.nothing); told(result); }
  } catch (error) {
    complain(error);
  }
  await next();
}

/* steps are drawn at the pace of the system, however fast they come */
let timer = null;
function watch() {
  clearInterval(timer);
  if (run) run.shown = 0;
  timer = setInterval(() => {
    if (!run) { clearInterval(timer); return; }
    if (run.shown < run.steps.length - 1) run.shown += 1;
    else if (!busy) clearInterval(timer);
    if (run.steps.length) draw();
  }, Math.max(40, 1000 * system.dt));
}

function curves(nothing) {
  const count = (values, from = 0) => values.map((_, k) => from + k);
  const series = [
    ...(nothing ? [{ name: "doing nothing", style: "nothing", x: count(nothing), y: nothing }] : []),
    { name: "what happened", style: "real", x: run.steps.map((s) => s.step), y: run.steps.map((s) => s.distance) },
    ...run.plans.map((p, k) => ({ name: k ? null : "as planned", style: "plan", x: count(p.distances, p.at), y: p.distances })),
  ];
  if (!chart) chart = new Chart(byId("distance"), { series, xLabel: "step", yLabel: "distance of positions from the goal, in their units", zero: true }, (step) => {
    clearInterval(timer);
    if (run) { run.shown = Math.min(step, run.steps.length - 1); draw(); }
  });
  else chart.set({ series });
}

function told(result) {
  const f = result.figures, share = (value) => `${(100 * value).toPrecision(3)} %`, found = [];
  found.push(["error at the end, |o − goal| / |goal|", brief(f.control_error)]);
  if (f.voltage_error !== undefined) found.push(["voltage error, of that at the start", share(f.voltage_error)]);
  else if (f.control_error_over_nothing !== undefined) found.push(["of the error of doing nothing", share(f.control_error_over_nothing)]);
  found.push(["error of positions alone", brief(f.control_error_positions)], ["cost", brief(f.cost)]);
  found.push([result.plan_seconds.length === 1 ? "planning, CPU time" : `${result.plan_seconds.length} plans, CPU time`, `${brief(result.plan_seconds.reduce((a, b) => a + b, 0))} s`]);
  byId("figures").replaceChildren(...found.map(([name, value]) => {
    const box = document.createElement("div"), term = document.createElement("dt"), what = document.createElement("dd");
    [term.textContent, what.textContent] = [name, value];
    box.append(term, what);
    return box;
  }));
  byId("result-note").textContent = result.status === "solved" ? "" : `The planner: ${result.status}. ${result.advice}`;
}

/* ---- all of it ---- */

byId("plan").addEventListener("click", plan);
byId("stop").addEventListener("click", () => job !== null && ask("stop", { job }).catch(complain));
byId("again").addEventListener("click", watch);
byId("reset").addEventListener("click", () => { goal = system.goal.map((row) => [...row]); run = null; draw(); buttons(); });
byId("world").addEventListener("change", () => { worldPicked(); prepare(); });
byId("potential").addEventListener("change", prepare);
for (const id of ["objects", "seed"]) byId(id).addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(prepare, 400); // once the number is whole
});

(async () => {
  try {
    choices = await ask("choices");
    const { low, high, start } = choices.horizons;
    Object.assign(byId("horizon"), { min: low, max: high, value: start });
    fill(byId("world"), choices.worlds.map((w) => [w.name, w.name]));
    worldPicked();
    await prepare();
  } catch (error) {
    complain(error);
  }
})();
