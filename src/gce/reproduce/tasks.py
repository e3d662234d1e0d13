"""Test systems: a random system that no model was trained on, recordings to adapt to, and a goal to reach.

Everything follows from (world, sizes, seed): all methods meet the same systems, which is what paired tests need. A goal
is where recorded actions of the world's kind lead; on the grid it is v = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from gce.envs import GraphEnv, Protocol, world_named
from gce.planning.closed_loop import Run, control, figures, problem_for
from gce.reproduce.methods import Subject
from gce.trajectory import Episode

Array = np.ndarray

SEEN, UNSEEN = "in-distribution", "few-shot"
TEST, VALIDATION = 7_000_000, 8_000_000
"""Seeds of the systems of the tables, and of those that action weights are chosen on."""


def sizes_of(world: str, split: str) -> tuple[int, int]:
    """The smallest and largest system: those trained on, or others."""
    kind = world_named(world)
    return {SEEN: kind.object_range, UNSEEN: kind.recipe.unseen}[split]


@dataclass(frozen=True)
class Setting:
    """A system drawn at random. goal: where an episode of recorded actions leads; episodes: to adapt to."""

    env: GraphEnv
    seed: int
    goal: Float[Array, "nodes d"]
    target: Episode
    episodes: list[Episode]

    def restart(self, observation_noise: float = 0.0, process_noise: float = 0.0) -> GraphEnv:
        """The system at its start again; the loads of a grid are the same for every method."""
        options = {
            "parameters": self.env.parameters,
            "goal": self.goal,
            "observation_noise": observation_noise,
            "process_noise": process_noise,
        }
        self.env.reset(seed=self.seed, options=options)
        return self.env


def draw(
    world: str,
    sizes: tuple[int, int],
    seed: int,
    episodes: int = 8,
    *,
    steps: int = 100,
    observation_noise: float = 0.0,
    process_noise: float = 0.0,
) -> Setting:
    """A system, a clean episode that gives the goal, and recordings of it with the noise asked for."""
    env = world_named(world)(objects=sizes)
    env.reset(seed=seed)
    parameters, M = env.parameters, env.recipe.protocol.horizon
    found = []
    for k in range(episodes + 1):
        noise = {"observation_noise": observation_noise, "process_noise": process_noise} if k else {}
        drawn = int(np.random.SeedSequence([seed, k]).generate_state(1)[0])
        env.reset(seed=drawn, options={"parameters": parameters, **noise})
        observations, actions = env.run(env.excitation(np.random.default_rng([drawn, 1]), steps), steps)
        found.append(Episode(env.graph, observations, actions))
    target, *rest = found
    goal = env.default_goal(env.graph.num_nodes)
    if goal is None:
        goal = target.observations[M].astype(float)
    return Setting(env, int(np.random.SeedSequence([seed, 0]).generate_state(1)[0]), goal, target, rest)


def run_control(
    setting: Setting,
    subject: Subject,
    protocol: Protocol,
    *,
    observation_noise: float = 0.0,
    process_noise: float = 0.0,
) -> tuple[Run, dict[str, Any]]:
    """Control a system from its start, and what is reported of it."""
    env = setting.restart(observation_noise, process_noise)
    run = control(env, subject.planner(problem_for(env, setting.goal, protocol)), protocol.feedback)
    found = figures(env, run)
    psi, aim = subject.features(run.observations[1:]), subject.features(setting.goal[None])
    effort = env.action_weight * np.square(run.actions / env.action_std).sum()
    kept = ("control_error", "control_error_positions", "control_error_over_nothing", "nothing", "cost", "status")
    reported: dict[str, Any] = {name: found[name] for name in kept}
    reported["feature_cost"] = float(np.square(psi - aim).sum() + effort)
    reported["plan_seconds"] = float(sum(found["plan_seconds"]))
    reported["objects"] = env.graph.num_nodes
    return run, reported | env.extra_figures(run.observations, run.goal)


def protocol_for(world: str, settings: dict[str, Any]) -> Protocol:
    """The world's, with the costs that settings name; `costs_alone` for plans that nothing else holds back."""
    changes = {name: settings[name] for name in ("action_cost", "state_cost") if settings.get(name) is not None}
    if settings.get("costs_alone"):
        changes |= {"change_cost": 0.0, "rate": np.inf}
    return replace(world_named(world).recipe.protocol, **changes)
