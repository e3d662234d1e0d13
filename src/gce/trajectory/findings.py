"""What recordings show, in plain words, and what looks wrong with them, with advice.

A warning is for data whose answers would be worth little: nothing excites a system, nodes move with others that no
edge joins to them, there is little of it, columns stay or are noise, velocities are not those of the positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gce.names import some
from gce.trajectory.dataset import Dataset
from gce.trajectory.rows import Rows, better, left_out
from gce.trajectory.structure import Structure, find_structure

SYSTEMS, EPISODES = 100, 8
"""How many systems, and episodes of each, are looked at for actions."""
FEW = 200
"""Rows (a node at a step) below which hardly anything can be told."""
NOISE = 0.9
"""The share of a column that the step before does not tell, from which it is noise."""
MISSED = 0.04
"""The share of the error that nodes without an edge may take away."""


@dataclass(frozen=True)
class Warned:
    """What looks wrong, and what to do about it; two sentences."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


def told(data: Dataset, found: Structure) -> list[str]:
    """What was found, a sentence each, in the names of the columns."""
    name = _namer(data, "observation_names", "column")
    acts = _namer(data, "action_names", "action")
    said = []
    for (p, v, dt), backward in zip(found.moves, found.backward, strict=True):
        kind = "differences of positions" if backward else "instantaneous"
        said.append(f"{name(v)} is the velocity of {name(p)}: {dt:.4g} s a step, {kind}")
    rates = {turn[:2]: turn[2:] for turn in found.turns}
    for i, j in found.circles:
        rate = f", turning at the rate {name(rates[i, j][0])}" if (i, j) in rates else ""
        said.append(f"{name(i)} and {name(j)} are the cosine and sine of an angle{rate}")
    for vector in found.vectors:
        where = "the plane" if len(vector) == 2 else "space"
        said.append(f"{', '.join(map(name, vector))} form a vector in {where}")
    for vector in found.action_vectors:
        said.append(f"{', '.join(map(acts, vector))} act as a vector")
    said += [f"{acts(k)} says where {name(c)} shall be" for k, c, _ in found.setpoints]
    if found.shift_invariant:
        said.append(f"only differences between neighbours matter in {', '.join(map(name, found.shift_invariant))}")
    if found.turn_invariant:
        about = "" if found.turn_axis is None else f" about the axis of {name(found.turn_axis)}"
        said.append(f"turns{about} leave the dynamics alone")
    said += [f"the last {found.edge_actions} action columns act on edges"] if found.edge_actions else []
    said += ["actions show one step late"] if found.late_action else []
    said += ["the observation before tells much: train with a history of two"] if found.history > 1 else []
    return said or ["no velocities, angles, vectors or invariances"]


def look_over(data: Dataset) -> tuple[Structure, list[Warned]]:
    """The structure of a data set, and everything that looks wrong."""
    found = find_structure(data)
    return found, [*_excitation(data), *_amount(data), *_graphs(data, found), *_columns(data, found)]


def _excitation(data: Dataset) -> list[Warned]:
    numbers = np.unique(data.groups)[:SYSTEMS]
    idle, constant, still = [], [], []
    for g in numbers:
        episodes = [data[int(k)] for k in data.group(int(g)).episodes[:EPISODES]]
        actions = np.concatenate([e.actions.reshape(len(e.actions), -1) for e in episodes])
        if actions.shape[1] and not actions.any():
            idle.append(int(g))
        elif actions.shape[1] and not np.ptp(actions, axis=0).any():
            constant.append(int(g))
        if not any(np.ptp(e.observations, axis=0).any() for e in episodes):
            still.append(int(g))
    warned = []
    for which, what in ((idle, "zero"), (constant, "constant")):
        if which:
            warned.append(
                Warned(
                    f"the actions of {_systems(which, len(numbers))} are {what} throughout",
                    "what an action does cannot be learned from them: record episodes with varied actions, "
                    "or no plan for them is worth anything",
                )
            )
    if still:
        warned.append(
            Warned(f"nothing moves in {_systems(still, len(numbers))}", "record episodes in which the system moves")
        )
    return warned


def _amount(data: Dataset) -> list[Warned]:
    numbers, counts = np.unique(data.groups, return_counts=True)
    warned, rows = [], sum(e.length * e.num_nodes for e in data.select(np.arange(min(len(data), FEW))))
    if rows < FEW:
        episodes = f"{len(data)} episode{'s' * (len(data) > 1)} of {int(data.lengths.max())} steps"
        warned.append(
            Warned(
                f"there is little to learn from: {episodes} in all, {rows} steps of single nodes",
                "record some dozens of episodes of 50 steps or more",
            )
        )
    if (counts == 1).any():
        warned.append(
            Warned(
                f"there is a single episode of {_systems(numbers[counts == 1].tolist(), len(numbers))}",
                "training and validation need two or more of each (Dataset.cut makes several of a long one)",
            )
        )
    return warned


def _graphs(data: Dataset, found: Structure) -> list[Warned]:
    numbers = np.unique(data.groups)[:SYSTEMS]
    graphs = {int(g): data.group(int(g)).graph for g in numbers}
    bare = [
        g
        for g, graph in graphs.items()
        if graph.num_nodes > 1 and not (graph.edge_index[0] != graph.edge_index[1]).any()
    ]
    warned = []
    if bare:
        warned.append(
            Warned(
                f"the graph of {_systems(bare, len(numbers))} has no edges between nodes",
                "every node is then predicted alone: give the edges along which nodes act on one another",
            )
        )
    rows, beyond = Rows.of(data), Rows.of(data, joined=False)
    if not rows.enough or len(beyond.near) == 0:
        return warned
    Y = (rows.after - rows.now)[:, [c for c in range(rows.now.shape[1]) if c not in found.constant]]
    places = [list(vector) for vector in found.vectors[::2]]

    def between(some: Rows) -> np.ndarray:
        """Differences, and those of vectors times their lengths: linear forces and what springs do."""
        long = [some.near[:, v] * np.linalg.norm(some.near[:, v], axis=1, keepdims=True) for v in places]
        return some.summed(np.concatenate([some.near, *long], axis=1))

    base = np.concatenate([rows.by_type(np.concatenate([rows.now, rows.action], 1)), between(rows)], axis=1)
    more = np.concatenate([base, between(beyond)], axis=1)
    if better(left_out(more, Y, rows.part), left_out(base, Y, rows.part), MISSED):
        warned.append(
            Warned(
                "nodes move with others that no edge joins to them",
                "edges that matter may be missing: join the nodes that act on one another",
            )
        )
    return warned


def _columns(data: Dataset, found: Structure) -> list[Warned]:
    name = _namer(data, "observation_names", "column")
    dt, warned = float(data.metadata.get("dt") or 1.0), []
    if found.constant:
        warned.append(
            Warned(
                f"{_are(found.constant, name)} constant",
                "leave such columns out, or give what differs between nodes as node attributes",
            )
        )
    if found.tiny:
        warned.append(
            Warned(
                f"{_are(found.tiny, name)} nearly constant beside the size of the numbers",
                "subtract an offset, or choose a smaller unit",
            )
        )
    for p, v, r2 in found.disagreeing:
        warned.append(
            Warned(
                f"{name(v)} looks like the velocity of {name(p)}, but tells only {max(r2, 0):.0%} of its steps "
                "with the right sign",
                "check its sign, whether it is of the same step, and its noise",
            )
        )
    off = [(p, v, s) for p, v, s in found.moves if "dt" in data.metadata and dt != 1.0 and not 0.9 < s / dt < 1.1]
    for p, v, s in off:
        warned.append(
            Warned(
                f"{name(v)} times {s:.3g} gives the steps of {name(p)}, but a step takes {dt:g} s",
                "give both in the same unit, or mend dt",
            )
        )
    rows = Rows.of(data)
    if rows.enough:
        used = [c for c in range(rows.now.shape[1]) if c not in found.constant]
        X = np.concatenate([rows.now, rows.past, rows.action, rows.summed(rows.near)], axis=1)
        noise = [c for c, left in zip(used, left_out(X, rows.after[:, used], rows.part), strict=True) if left > NOISE]
        if noise:
            warned.append(
                Warned(f"{_are(noise, name)} like noise: nothing of a step tells the next", "leave such columns out")
            )
    return warned


def _namer(data: Dataset, key: str, word: str) -> Callable[[int], str]:
    names = data.metadata.get(key) or []
    return lambda c: str(names[c]) if c < len(names) else f"{word} {c}"


def _are(columns: Sequence[int], name: Callable[[int], str]) -> str:
    return f"{', '.join(map(name, columns))} {'is' if len(columns) == 1 else 'are'}"


def _systems(which: Sequence[int], of: int) -> str:
    if len(which) == of:
        return "every system" if of > 1 else "the system"
    return f"{'system' if len(which) == 1 else 'systems'} {some(which, most=5)}"
