"""What the actions of a system may be: which nodes take one, and between which bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from gce.errors import InputError

if TYPE_CHECKING:
    from gce.trajectory.dataset import Dataset


@dataclass(frozen=True, eq=False)
class Limits:
    """The lowest and highest action of every node, infinite where there is no bound.

    Where the two are equal (0 as a rule) there is nothing to choose: the node takes no action.
    """

    low: Float[np.ndarray, "nodes action_coordinates"]
    high: Float[np.ndarray, "nodes action_coordinates"]

    def __post_init__(self) -> None:
        if self.low.ndim != 2 or self.low.shape != self.high.shape:
            raise InputError(
                f"the lowest actions have shape {self.low.shape}, the highest {self.high.shape}; "
                "expected (nodes, action coordinates) for both"
            )
        if not (self.low <= self.high).all():  # NaN is refused too
            node, column = np.argwhere(~(self.low <= self.high))[0]
            raise InputError(
                f"the action of node {node} is bounded by {self.low[node, column]} and {self.high[node, column]} in "
                f"coordinate {column}; give the smaller bound first"
            )

    @property
    def actuated(self) -> Bool[np.ndarray, " nodes"]:
        """Which nodes take an action."""
        return np.any(self.low < self.high, axis=1)

    @classmethod
    def of(
        cls,
        num_nodes: int,
        num_actions: int,
        actuated: ArrayLike | None = None,
        bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    ) -> Limits:
        """From which nodes act (numbers of nodes or one truth value a node; None: all) and (lowest, highest) action.

        A bound is one number, one for each action coordinate, or one for each node and coordinate.
        """
        acts = _actuated(actuated, num_nodes)[:, None]
        low, high = (_bound(side, b, num_nodes, num_actions) for side, b in zip(SIDES, bounds, strict=True))
        return cls(np.where(acts, low, 0.0), np.where(acts, high, 0.0))

    @classmethod
    def filled(
        cls,
        actions: list[np.ndarray],
        actuated: ArrayLike | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Limits:
        """As given; what is missing is taken from recorded actions [T, nodes, coordinates] of the system.

        Nodes act whose action was ever other than 0, and bounds are the lowest and highest action recorded of any
        node, so that no plan leaves what was tried.
        """
        lowest, highest = (np.stack([pick(a, axis=0) for a in actions]) for pick in (np.min, np.max))
        if actuated is None:
            actuated = ((lowest != 0) | (highest != 0)).any(axis=(0, 2))
        if bounds is None:
            bounds = (lowest.min(axis=(0, 1)), highest.max(axis=(0, 1)))
        return cls.of(actions[0].shape[1], actions[0].shape[2], actuated, bounds)

    def check(self, actions: np.ndarray, where: str = "") -> None:
        """Refuse recorded actions of nodes that take none; actions beyond the bounds are the recording's affair."""
        idle = np.abs(actions) * ~self.actuated[:, None] > 0
        if idle.any():
            step, node, column = np.argwhere(idle)[0]
            raise InputError(
                f"{where}node {node} is not among the actuated nodes, but its action is {actions[step, node, column]} "
                f"at step {step}; nodes are numbered from 0"
            )


SIDES = ("lowest", "highest")


def control_limits(
    dataset: Dataset, group: int = 0
) -> tuple[
    Bool[np.ndarray, " nodes"],
    Float[np.ndarray, "nodes action_coordinates"],
    Float[np.ndarray, "nodes action_coordinates"],
]:
    """(actuated, lowest, highest) action of every node of one system of a data set.

    As the data set says; where it says nothing, as the actions recorded of the system tell (`Limits.filled`).
    """
    found = dataset.group(group)
    limits = found.limits
    if limits is None:
        limits = Limits.filled([dataset[int(k)].actions for k in found.episodes])
    return limits.actuated, limits.low, limits.high


def _actuated(given: ArrayLike | None, num_nodes: int) -> np.ndarray:
    if given is None:
        return np.ones(num_nodes, bool)
    values = np.asarray(given)
    if values.dtype == bool:
        if values.shape != (num_nodes,):
            raise InputError(f"actuated has shape {values.shape}, expected ({num_nodes},): one truth value a node")
        return values
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"actuated holds {values.dtype} values, expected numbers of nodes or truth values")
    values = values.astype(np.int64).reshape(-1)
    if values.size and not (values.min() >= 0 and values.max() < num_nodes):
        wrong = values[(values < 0) | (values >= num_nodes)][0]
        raise InputError(f"actuated has node {wrong} but there are {num_nodes} nodes; nodes are numbered from 0")
    return np.isin(np.arange(num_nodes), values)


def _bound(side: str, given: ArrayLike, num_nodes: int, num_actions: int) -> np.ndarray:
    values = np.asarray(given, dtype=np.float64)
    if values.shape not in ((), (num_actions,), (num_nodes, num_actions)):
        raise InputError(
            f"the {side} action has shape {values.shape}, expected a number, ({num_actions},) for the action "
            f"coordinates or ({num_nodes}, {num_actions}) for all nodes"
        )
    return np.broadcast_to(values, (num_nodes, num_actions))
