"use strict";
/* The report: one step at a time, shown in the picture and in the charts. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const LAST = DATA.frames.length - 1;
const byId = (id) => document.getElementById(id);
const steps = (values, from = 0) => values.map((_, k) => from + k);
const percent = (share) => `${(100 * share).toPrecision(share < 0.1 ? 2 : 3)} %`;

/* ---- figures ---- */

function summary() {
  const f = DATA.figures, found = [];
  const add = (name, value, told = brief) => {
    if (value !== undefined && value !== null) found.push([name, typeof value === "string" ? value : told(value)]);
  };
  if (DATA.simulated) {
    const [, , places, unit] = DATA.words, pair = (unit) => ([left, nothing]) => `${brief(left)}, ${brief(nothing)} ${unit}`;
    if (f.voltage_error !== undefined) add("voltage error, of that at the start", f.voltage_error, percent);
    else add("of the error of doing nothing", f.control_error_over_nothing, percent);
    add(`${places}: rms at the end, of doing nothing`, f.rms_positions, pair(unit));
    add("rates of change: rms at the end, of doing nothing", f.rms_rates, pair(`${unit}/s`));
    add("error at the end, |o − goal| / |goal|", f.control_error);
    add("cost", f.cost);
  } else {
    add("predicted error at the end", f.predicted_control_error);
    add("distance to the goal, at the start", f.start_distance);
    if (f.prediction) {
      const beside = [["model", "model"], ["persistence", "persistence"], ["DMDc", "dmdc"]].filter(([, key]) => typeof f.prediction[key] === "number");
      add("prediction error (NRMSE)", beside.map(([name, key]) => `${name} ${brief(f.prediction[key])}`).join(", "));
    }
    add("predicted cost", f.predicted_cost);
  }
  const seconds = f.plan_seconds || [];
  if (seconds.length) add(seconds.length === 1 ? "planning, CPU time" : `${seconds.length} plans, CPU time`, `${brief(seconds.reduce((a, b) => a + b, 0))} s`);
  add("planner", f.status);
  const field = DATA.mean_field || {};
  add("Gibbs weight of a node on itself, mean", field.self);
  add("neighbours that count, exp of the entropy", field.effective_neighbours);
  if (field.nrmse !== undefined)
    add("prediction error (NRMSE): own weights, identity, uniform", [field.nrmse, field.nrmse_identity, field.nrmse_uniform].map(brief).join(", "));
  byId("figures").replaceChildren(...found.map(([name, value]) => {
    const box = document.createElement("div"), term = document.createElement("dt"), what = document.createElement("dd");
    [term.textContent, what.textContent] = [name, value];
    box.append(term, what);
    return box;
  }));
  const adapted = DATA.settings.adapt, seconds_of = brief(LAST * DATA.dt);
  byId("lead").textContent = DATA.simulated
    ? `The model adapted to ${adapted} recorded episodes of this system, planned, and its actions were taken on the simulator for ${seconds_of} s.`
    : `There is no simulator of this system: what is shown is the plan, and what the model expects of it.`;
}

/* ---- the picture ---- */

const motion = new Scene(byId("motion"), DATA.scene, "the system at the chosen step");
const goal = new Scene(byId("goal"), DATA.scene, "the goal");
if (DATA.scene.kind === "network") {
  const misses = DATA.frames.flatMap((frame) => frame.map((row, i) => (DATA.goal[i][0] === null ? 0 : Math.abs(row[0] - DATA.goal[i][0]))));
  motion.span = goal.span = Math.max(...span(misses)) || 1;
  byId("goal-choice").hidden = true; // colours are of the distance from it
  const told = DATA.goal.map((row) => row[0]).filter((value) => value !== null), values = span(told);
  const where = told.length < DATA.goal.length ? `${told.length} of ${DATA.goal.length} nodes; grey ones are free` : "every node";
  byId("goal-caption").textContent = !told.length ? "The goal is one of other coordinates." : values[0] === values[1] ? `The goal: ${brief(values[0])} at ${where}.` : `The goal: from ${brief(values[0])} to ${brief(values[1])}, at ${where}.`;
}
motion.bendAt(DATA.frames[0]);
goal.bendAt(DATA.frames[0]);
goal.show({ places: DATA.goal, goal: DATA.scene.kind === "network" ? DATA.goal : null });

function planAt(step) {
  const plan = DATA.plans.filter((p) => p.at <= step).at(-1);
  return plan.frames[step - plan.at];
}

let now = 0;

function show(step) {
  now = Math.max(0, Math.min(LAST, step));
  const checked = (id) => byId(id).checked;
  motion.show({
    places: DATA.frames[now],
    goal: checked("show-goal") || DATA.scene.kind === "network" ? DATA.goal : null,
    ghost: checked("show-ghost") && DATA.simulated ? planAt(now) : null,
    weights: checked("show-weights") && DATA.weights[now].length ? DATA.weights[now] : null,
    action: DATA.pushes[Math.min(now, LAST - 1)],
  });
  byId("step").value = now;
  byId("clock").textContent = `step ${now} of ${LAST}, ${(now * DATA.dt).toFixed(2)} s`;
  charts.forEach((chart) => chart.point(now));
  weightsTable();
}

function weightsTable() {
  const chosen = motion.chosen, weights = DATA.weights[now];
  if (chosen === undefined) return;
  const [one, , , unit] = DATA.words;
  if (DATA.scene.kind === "network")
    byId("chosen").textContent = `${one} ${DATA.nodes[chosen]}: ${DATA.frames[now][chosen].map((v) => v.toFixed(4)).join(", ")} ${unit}`
      + (DATA.goal[chosen][0] === null ? "" : `, goal ${brief(DATA.goal[chosen][0])}`);
  else byId("chosen").textContent = `${one} ${DATA.nodes[chosen]}`;
  if (!weights.length) return;
  const rows = DATA.scene.edges.map(([sender, receiver], k) => [sender, receiver, weights[k]]).filter((e) => e[1] === chosen);
  rows.sort((a, b) => b[2] - a[2]);
  const most = rows.slice(0, 8).map(([sender, , w]) => [sender === chosen ? `${DATA.nodes[sender]} (itself)` : DATA.nodes[sender], w.toFixed(3)]);
  byId("weights-table").replaceChildren(table(most, [`node ${DATA.nodes[chosen]} weighs its neighbour`, "by"]));
}

byId("motion").addEventListener("click", (event) => {
  motion.chosen = motion.nearest(event, DATA.frames[now]);
  show(now);
});

/* with the arrow keys one node after another, and back to none */
byId("motion").addEventListener("keydown", (event) => {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!way) return;
  event.preventDefault();
  motion.chosen = ((motion.chosen ?? (way > 0 ? -1 : 0)) + way + DATA.nodes.length) % DATA.nodes.length;
  show(now);
});

/* in the time of the system */
let timer = null;
function play(on) {
  if (timer !== null) cancelAnimationFrame(timer);
  const begun = performance.now() - 1000 * DATA.dt * now;
  const tick = (time) => {
    const due = Math.min(LAST, Math.floor((time - begun) / (1000 * DATA.dt)));
    if (due > now) show(due);
    if (now === LAST) play(false);
    else timer = requestAnimationFrame(tick);
  };
  timer = on ? requestAnimationFrame(tick) : null;
  byId("play").textContent = on ? "Pause" : "Play";
  byId("play").setAttribute("aria-pressed", String(on));
}
byId("play").addEventListener("click", () => {
  if (!timer && now === LAST) show(0);
  play(!timer);
});
byId("step").max = LAST;
byId("step").addEventListener("input", (event) => { play(false); show(Number(event.target.value)); });
for (const id of ["show-weights", "show-ghost", "show-goal"]) byId(id).addEventListener("change", () => show(now));

/* ---- charts ---- */

const charts = [];
const pick = (step) => { play(false); show(step); };

function distanceSeries(which) {
  const d = DATA.distances[which];
  const plans = d.plans.map((values, k) => ({ name: k ? null : "as planned", style: "plan", x: steps(values, DATA.plans[k].at), y: values }));
  const nothing = d.nothing.length ? [{ name: "doing nothing", style: "nothing", x: steps(d.nothing), y: d.nothing }] : [];
  const real = DATA.simulated ? [{ name: "what happened", style: "real", x: steps(d.real), y: d.real }] : [];
  return [...nothing, ...real, ...plans];
}

function distances() {
  const chart = new Chart(byId("distance"), { series: distanceSeries(0), xLabel: "step", yLabel: "rms, in units of each coordinate", zero: true }, pick);
  charts.push(chart);
  if (DATA.distances.length < 2) return;
  DATA.distances.forEach((d, k) => {
    const label = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "distance-of", checked: k === 0 });
    input.addEventListener("change", () => chart.set({ series: distanceSeries(k) }));
    label.append(input, d.name);
    byId("distance-choice").append(label);
  });
}

function costs() {
  byId("cost-card").hidden = !DATA.costs.length; // without a simulator there is no cost but the predicted one
  if (!DATA.costs.length) return;
  const total = DATA.costs.reduce((a, b) => a + b, 0);
  byId("cost-note").textContent = `The squared distance from the goal and the weighted squared actions; ${brief(total)} in all.`;
  charts.push(new Chart(byId("cost"), { series: [{ style: "real", x: steps(DATA.costs, 1), y: DATA.costs }], xLabel: "step", yLabel: "cost", zero: true, label: "cost of each step" }, pick));
}

function actionSeries(index) {
  const of = (rows, at, style, name, k) => ({ name, style, steps: true, x: steps(rows, at), y: rows.map((row) => row[index][k]) });
  const found = [];
  DATA.action_names.forEach((label, k) => {
    for (const bound of DATA.bounds) {
      const value = bound[index][k];
      if (value !== null) found.push({ style: "bound", name: bound === DATA.bounds[0] && k === 0 ? "bounds" : null, x: [0, LAST], y: [value, value] });
    }
    if (DATA.simulated) found.push(of(DATA.actions, 0, "act", `${label}, taken`, k));
    DATA.plans.forEach((plan, p) => found.push(of(plan.actions, plan.at, "plan", p ? null : `${label}, planned`, k)));
  });
  return found;
}

function actions() {
  const choice = byId("action-node");
  byId("action-word").textContent = DATA.words[0];
  choice.replaceChildren(...DATA.busy.map((node, k) => new Option(DATA.nodes[node], k)));
  const size = (k) => Math.max(...DATA.actions.map((row) => Math.max(...row[k].map(Math.abs))));
  const busiest = DATA.busy.map((_, k) => k).reduce((a, b) => (size(b) > size(a) ? b : a), 0);
  choice.value = busiest;
  const chart = new Chart(byId("actions"), { series: actionSeries(busiest), xLabel: "step", yLabel: DATA.action_names.join(", ").replaceAll("_", " ") }, pick);
  charts.push(chart);
  choice.addEventListener("change", () => chart.set({ series: actionSeries(Number(choice.value)) }));
}

const RUNS_AWAY = 10; // an NRMSE above which a prediction is none

function fit() {
  const { counts, errors } = DATA.fit;
  byId("fit-card").hidden = !counts.length; // of a kept system the episodes are not at hand
  if (!counts.length) return;
  const tame = (row) => row.every((e) => e !== null && e < RUNS_AWAY), wild = counts.filter((_, k) => !tame(errors[k]));
  const at = counts.map((_, k) => k).filter((k) => tame(errors[k])), x = at.map((k) => Math.log2(counts[k]));
  const what = DATA.simulated ? "this run" : "the recorded episode that the plan starts from";
  byId("fit-note").textContent = `NRMSE of predicting ${what}, which no fit knew, from its start and its actions: mean over its steps, and at the last.`
    + (wild.length ? ` Not drawn: after ${wild.join(", ")} episode${wild.at(-1) > 1 ? "s" : ""} the prediction runs away (an NRMSE above ${RUNS_AWAY}).` : "");
  const mean = at.map((k) => errors[k].reduce((a, b) => a + b, 0) / errors[k].length), last = at.map((k) => errors[k].at(-1));
  const ticks = counts.filter((n) => Number.isInteger(Math.log2(n))).map((n) => [Math.log2(n), String(n)]);
  new Chart(byId("fit"), {
    series: [{ name: "mean", style: "real", x, y: mean, dots: 4, joined: true }, { name: "at the last step", style: "plan", x, y: last, dots: 3, joined: true }],
    xLabel: "episodes adapted to", yLabel: "NRMSE", zero: true, ticks });
}

function spectrum(id, note, values, words) {
  if (!values.length) {
    byId(note).textContent = "Left out: " + words.without;
    return;
  }
  const radius = Math.max(...span(values.map(([re, im]) => Math.hypot(re, im))));
  byId(note).textContent = `${words.what} The largest has size ${radius.toFixed(3)}.`;
  const both = [...values, ...values.filter((v) => v[1] > 0).map(([re, im]) => [re, -im])];
  new Chart(byId(id), { series: [{ style: words.style, dots: both.length > 800 ? 1.5 : 2.5, faint: 0.6, x: both.map((v) => v[0]), y: both.map((v) => v[1]) }], xLabel: "real part", yLabel: "imaginary part", circle: true, square: true, label: "eigenvalues in the complex plane" });
}

/* ---- tables ---- */

function table(rows, head) {
  const made = document.createElement("table"), body = made.createTBody();
  if (head) {
    const row = made.createTHead().insertRow();
    head.forEach((text, k) => { const cell = document.createElement("th"); cell.textContent = text; if (k) cell.className = "number"; row.append(cell); });
  }
  for (const [name, value] of rows) {
    const row = body.insertRow(), first = document.createElement("th");
    first.textContent = String(name).replaceAll("_", " ");
    const cell = row.appendChild(first) && row.insertCell();
    cell.textContent = typeof value === "object" ? JSON.stringify(value) : String(value);
    if (head) cell.className = "number";
  }
  return made;
}

const told = (values) => Object.entries(values).filter(([, value]) => value !== null && value !== "" && JSON.stringify(value) !== "[]");

/* ---- all of it ---- */

summary();
distances();
costs();
actions();
fit();
spectrum("operator", "operator-note", DATA.spectra.operator, {
  style: "real",
  what: "Eigenvalues in feature space, with the weights of the first state.",
  without: DATA.model.operator_alone === false || DATA.model.implicit
    ? "of these bodies the operator only corrects what their joints say; it is no map of its own."
    : "the operator shares no blocks over the nodes, or the graph is large.",
});
spectrum("step-spectrum", "step-note", DATA.spectra.step, {
  style: "plan",
  what: "Eigenvalues of the derivative of one predicted step at the first state: what a plan sees.",
  without: "the system is large.",
});
byId("settings").replaceChildren(table(told(DATA.settings)));
byId("model").replaceChildren(table(told(DATA.model)));
byId("versions").replaceChildren(table(Object.entries(DATA.versions)));
if (!DATA.simulated) {
  byId("motion-title").textContent = "What is planned";
  byId("actions-title").textContent = "Actions";
  byId("ghost-choice").hidden = true;
}
byId("weights-choice").hidden = !DATA.weights[0].length;
byId("weights-note").textContent = DATA.weights[0].length
  ? "The thicker the half of a link next to a node, the more weight that node gives to the other end; the ring is the weight it gives to itself. Choose a node to read its weights."
    + (DATA.edges_left_out ? ` Of this large graph ${DATA.edges_left_out} edges of least weight are left out.` : "")
  : `This form of the operator has no Gibbs weights. Choose a ${DATA.words[0]} to read it.`;
byId("motion-caption").textContent = DATA.scene.kind === "network"
  ? `Colour: above (red) or below (blue) the goal, by up to ${brief(motion.span)} ${DATA.words[3]}${DATA.simulated ? "; outer ring: as the plan expected" : ""}. Bars: actions.`
  : `Solid: the system${DATA.simulated ? "; dashed: as the plan expected" : " as the plan expects it"}; amber: the goal` + (DATA.scene.kind === "polygons" ? "; red boxes are actuated, deeper where they pull." : "; green: the action.");
show(0);
