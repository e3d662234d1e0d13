"""Plans with their feedback as C."""

import shutil
import subprocess

import numpy as np
import pytest

import gce
from gce.errors import InputError
from gce.planning.controller import Controller
from gce.planning.export import Feedback, write_c
from general import pendulums, trained
from small import system_episodes, untrained

MAIN = """
#include <stdio.h>
int main(void) {
    int step;
    double seen[GCE_SEEN], before[GCE_SEEN], acted[GCE_CONTROLS], action[GCE_CONTROLS];
    while (scanf("%d", &step) == 1) {
        for (int k = 0; k < GCE_SEEN; k++) if (scanf("%lf", seen + k) != 1) return 1;
        for (int k = 0; k < GCE_SEEN; k++) if (scanf("%lf", before + k) != 1) return 1;
        for (int k = 0; k < GCE_CONTROLS; k++) if (scanf("%lf", acted + k) != 1) return 1;
        gce_action(step, seen, before, acted, action);
        for (int k = 0; k < GCE_CONTROLS; k++) printf("%.17g ", action[k]);
        printf("\\n");
    }
    return 0;
}
"""


def planned(name, **changes):
    if name == "general":
        data = pendulums()
        system = gce.adapt(trained().model, [data[k] for k in range(3)], measure=False)
        episode, (_, low, high) = data[4], gce.control_limits(data)
    else:
        episodes = system_episodes("rope")
        system, episode = gce.adapt(untrained("rope", **changes.pop("model", {})), episodes[:3]), episodes[3]
        low, high = (side * np.abs(episode.actions).max(0).astype(float) for side in (-1, 1))
    rate = 0.3 * (high - low) if changes.pop("rate", False) else None
    problem = gce.Problem(10, episode.observations[10].astype(float), low, high, rate=rate, **changes)
    controller = Controller(system, problem, iterations=5)
    return controller, controller.plan(episode.observations[0].astype(float), opening=True)


CASES = {
    "rope": ("rope", {}),
    "rate": ("rope", {"rate": True}),
    "memory": ("rope", {"model": {"history": 2, "previous_action": True}}),
    "general": ("general", {}),
}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::gce.errors.Doubt")
def test_a_thousand_actions_of_the_c_file_are_those_of_python(name, tmp_path):
    kind, changes = CASES[name]
    controller, plan = planned(kind, **changes)
    write_c(controller, plan, tmp_path / "controller.c")
    (tmp_path / "main.c").write_text('#include "controller.c"\n' + MAIN.replace("\\\\n", "\\n"))
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run(["gcc", *flags, "main.c", "-o", "act", "-lm"], cwd=tmp_path, check=True)
    assert "malloc" not in (tmp_path / "controller.c").read_text()
    feedback, rng = Feedback.of(controller, plan), np.random.default_rng(0)
    M, n, Z = feedback.gains.shape
    size, std = plan.observations[0].size, np.tile(controller.system.model.arrays.observation_std, len(plan.actions[0]))
    lines, expected = [], []
    for k in range(1000):
        noise = 0.1 * rng.standard_normal(Z) * np.concatenate([std, std, np.ones(n)])
        z = feedback.expected[k % M] + noise
        lines.append(" ".join([str(k % M), *(f"{v:.17g}" for v in z)]))
        expected.append(feedback.action(k % M, z, z[2 * size :]))
    told = subprocess.run(["./act"], cwd=tmp_path, input="\n".join(lines), capture_output=True, text=True, check=True)
    found = np.array([[float(v) for v in line.split()] for line in told.stdout.splitlines()])
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-6)
    inside = (found > feedback.low + 1e-9) & (found < feedback.high - 1e-9)
    assert inside.mean() > 0.05
    assert np.abs(feedback.gains[:, :, size : 2 * size]).max() == 0 or name == "memory"


@pytest.mark.filterwarnings("ignore::gce.errors.Doubt")
def test_the_feedback_is_the_plan_along_itself_and_corrects_what_moves_away():
    controller, plan = planned("general")
    feedback = Feedback.of(controller, plan)
    for t in range(10):
        u = feedback.action(t, feedback.expected[t], feedback.expected[t][-1:])
        np.testing.assert_allclose(u, plan.actions[t][controller.problem.controls], atol=1e-9)
    start, system = plan.observations[0], controller.system
    kicked = start + np.array([0, 0, 0.3])
    ends = []
    for fed in (False, True):
        seen, before, acted = kicked, kicked, np.zeros(1)
        for t in range(10):
            z = np.concatenate([seen.ravel(), before.ravel(), acted])
            acted = feedback.action(t, z, acted) if fed else plan.actions[t][controller.problem.controls]
            action = np.zeros_like(plan.actions[0])
            action[controller.problem.controls] = acted
            seen, before = system.predict(seen, action[None])[1], seen
        ends.append(np.linalg.norm(seen - controller.problem.goal))
    assert ends[1] < ends[0]


@pytest.mark.filterwarnings("ignore::gce.errors.Doubt")
def test_what_cannot_be_exported_is_refused(tmp_path):
    episodes = system_episodes("grid")
    system = gce.adapt(untrained("grid"), episodes[:2])
    low, high = (side * np.abs(episodes[2].actions).max(0).astype(float) for side in (-1, 1))
    known = {} if episodes[2].exogenous is None else {"exogenous": episodes[2].exogenous[:5].astype(float)}
    problem = gce.Problem(5, episodes[2].observations[5].astype(float), low, high, **known)
    controller = Controller(system, problem, iterations=2)
    plan = controller.plan(episodes[2].observations[0].astype(float), opening=True)
    if known:
        with pytest.raises(InputError, match="inputs known in advance"):
            write_c(controller, plan, tmp_path / "grid.c")
    else:
        write_c(controller, plan, tmp_path / "grid.c")
    free, way = planned("rope", action_cost=0.0, terminal_cost=0.0)
    write_c(free, way, tmp_path / "idle.c")
    assert Feedback.of(free, way).gains.max() == 0
