"""`gce control --env`: acting on an environment of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gce.cli.common import write_ran
from gce.errors import InputError
from gce.names import some
from gce.progress import TOLD, progress

if TYPE_CHECKING:
    from gce.cli.control import Control
    from gce.cli.own_plan import Own
    from gce.control.problem import Problem
    from gce.interop.environments import Environment


def environment(own: Own, asked: Control) -> Environment:
    from gce.interop.environments import Mapping, made_by

    assert asked.env is not None
    link = made_by(asked.env, None if asked.mapping is None else Mapping.read(asked.mapping))
    for what, found, expected in (
        ("observations", link.mapping.observations, own.labels.observations),
        ("actions", link.mapping.actions, own.labels.actions),
    ):
        if found.shape != (len(own.labels.nodes), len(expected)):
            raise InputError(
                f"the mapping of {what} has shape {found.shape}, expected {(len(own.labels.nodes), len(expected))}: a "
                f"row a node ({some(own.labels.nodes)}), a column for each of {some(expected)}"
            )
    if asked.start is not None:
        raise InputError("an environment says by itself where it starts; leave --start out")
    return link


def act(own: Own, asked: Control, link: Environment, problem: Problem, start: Any) -> dict[str, Any]:
    """Act on an environment; its episodes can be learned from."""
    import numpy as np

    from gce import __version__
    from gce.control.tracking import Status
    from gce.planning.closed_loop import run
    from gce.planning.controller import Controller

    steps, (low, high) = asked.steps or problem.horizon, link.bounds
    reached = np.maximum(problem.low, low), np.minimum(problem.high, high)
    problem = replace(problem, low=np.minimum(*reached), high=reached[1])
    with progress("acting", steps, "steps") as done:
        controller = Controller(
            own.system,
            problem,
            asked.weights,
            time_limit=asked.time_limit,
            mode=asked.mode,
            tell=lambda turn, way: done(0),
        )
        ran = run(link, controller, start, steps=steps, feedback=asked.feedback or 1, progress=done)
    unit = np.broadcast_to(problem.unit, problem.goals[-1].shape)
    told = np.ones(unit.shape, bool) if problem.tracked is None else problem.tracked
    ends = [((o - problem.goals[-1]) / unit)[told] for o in (start, ran.known[-1])]
    answer = {
        "start_distance": float(np.sqrt(np.square(ends[0]).mean())),
        "distance": float(np.sqrt(np.square(ends[1]).mean())),
        "status": ran.status,
        "statuses": {str(status): count for status, count in ran.statuses.items()},
        "plan_seconds": ran.plan_seconds,
        "feedback_seconds": ran.feedback_seconds,
        "iterations": ran.iterations,
        "missed": ran.missed,
        "saturated": ran.saturated,
        "ended": ran.ended,
        "objects": len(own.labels.nodes),
        "horizon": problem.horizon,
        "steps": len(ran.actions),
        "shifted": ran.statuses[Status.SHIFTED],
        "seed": asked.seed,
        "version": __version__,
        "warnings": list(TOLD),
    }
    if asked.out is not None:
        write_ran(asked.out, ran, own.labels, (own.low, own.high), answer)
    return answer
