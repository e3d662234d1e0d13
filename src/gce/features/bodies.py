"""Features of stiff bodies: nodes made of points that springs and dampers couple, and that nodes share.

Vector channels (`body_channels`) hold what couplings do within one step, and are fitted first, a coefficient each. What
they leave, the operator on phi explains as pushes along the same pairs of points: whatever it has learned, it conserves
momentum, turns with the body, and cannot drive the body as a whole.

phi is message passing on inputs that stay as they are when the whole system moves or turns (`BodyInputs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.errors import InputError
from gce.features.base import StateShape
from gce.features.body_channels import BodyInputs, ImplicitLayer
from gce.features.message_passing import MessagePassing, MessagePassingConfig
from gce.graphs.topology import Topology
from gce.operators import Operator
from gce.operators.regression import FieldRows, Prior


@dataclass(frozen=True)
class BodiesConfig(MessagePassingConfig):
    """As message passing; drag: with channels of a medium's resistance."""

    kind: ClassVar[str] = "bodies"
    drag: bool = False


class Bodies(MessagePassing):
    """Vector channels of stiffly coupled points, and learned features that explain what they leave."""

    name = "bodies"
    Config = BodiesConfig
    formerly = {"implicit": True}
    dynamics = "gce.dynamics.bodies:BodyDynamics"
    linear = False
    batched = False
    note = "Plans of this world rest on how its bodies are joined; the potential changes the weights that are drawn."

    def __init__(self, shape: StateShape, config: BodiesConfig) -> None:
        super().__init__(shape, config)
        layer = cast(BodyInputs, self.inputs)
        self.channels = ImplicitLayer(layer, shape.num_node_types, shape.dt, config.drag)

    @classmethod
    def check(cls, config: Any) -> None:
        super().check(config)
        moves = {pair for p in config.points for pair in zip(p[:2], p[2:], strict=True)}
        used = sorted(coordinate for point in config.points for coordinate in point)
        if not used or used != list(range(config.num_observations)) or moves != set(config.kinematics):
            raise InputError(
                "a body is made of points alone, each of coordinates of its own, whose velocities say how its places "
                f"move; here points are {str(config.points)[:60]} and kinematics {str(config.kinematics)[:60]}"
            )

    def input_layer(self) -> BodyInputs:
        return self.shape.input_layer(BodyInputs)

    @property
    def regressed_state(self) -> list[int]:
        return []

    @property
    def num_effects(self) -> int:
        """Pushes along a node's pairs."""
        return len(self.inputs.pairs)

    def reach(self, topology: Topology) -> int:
        """All nodes: a push spreads over the whole body within a step."""
        return topology.num_nodes

    def anchored(self, topology: Topology) -> bool:
        return False

    def constants(self, values: Tensor) -> Tensor:
        """None: a body made of pairs knows no constant force."""
        return torch.zeros_like(values)

    def moving(self, topology: Topology) -> Float[Tensor, "nodes free"]:
        """1 where a free coordinate may move; points are held whole."""
        held = self.held_points(topology).repeat_interleave(2, dim=1)[:, self._speed_order]
        return (~held).to(self.inputs.unit_std.dtype)

    @property
    def held_targets(self) -> Bool[Tensor, "types targets"]:
        """None: pushes along pairs are not held."""
        return self.held.new_zeros(len(self.held), self.num_targets)

    @property
    def prior(self) -> Prior:
        return self.channels.prior

    def beside_channels(
        self, targets: Float[Tensor, "*batch nodes m"], x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> tuple[Float[Tensor, "*batch nodes m2"], FieldRows]:
        """With pushes along pairs in the place of increments, and the rows of the channels."""
        free, moving = len(self.free), self.moving(topology).to(targets.dtype).unsqueeze(-1)
        Z = self.channels(x, topology, self.held_points(topology))[..., self._speed_order, :] * moving
        y = targets[..., :free].unsqueeze(-1) * moving
        pushes = self._behind(torch.cat([y, Z], dim=-1), x, topology)
        rows = (part.movedim(-3, 0).flatten(1, -3) for part in (y, Z, pushes[..., 1:]))
        fields = FieldRows(next(rows).squeeze(-1), *rows)
        return torch.cat([pushes[..., 0], targets[..., free:]], dim=-1), fields

    def increments(
        self,
        operators: Sequence[Operator],
        targets: Float[Tensor, "nodes rows m"],
        x: Float[Tensor, "nodes rows c"],
        topology: Topology,
    ) -> Float[Tensor, "nodes rows free"]:
        """What channels and pushes do to the velocities."""
        rows, held = x.movedim(0, -2), self.held_points(topology)
        pushes = targets[..., : self.num_effects].movedim(0, -2)
        pushed = self.channels.pushed(pushes, rows, topology, held)[..., self._speed_order]
        return (self._channelled(operators, rows, topology) + pushed).movedim(-2, 0)

    def effects(
        self,
        operators: Sequence[Operator],
        x: Float[Tensor, "*batch nodes c"],
        next_x: Float[Tensor, "*batch nodes c"],
        topology: Topology,
    ) -> Float[Tensor, "*batch nodes effects"]:
        """Pushes behind what the channels leave."""
        moved = super().effects(operators, x, next_x, topology) - self._channelled(operators, x, topology)
        return self._behind((moved * self.moving(topology)).unsqueeze(-1), x, topology).squeeze(-1)

    @torch.no_grad()
    def prepare(self, samples: Iterable[tuple[Tensor, Topology]]) -> None:
        super().prepare(samples)
        self.channels.set_classes()

    def held_points(self, topology: Topology) -> Bool[Tensor, "nodes points"]:
        """Points that never move, and those tied to them: a corner that one box holds, all do."""
        held = self.held[topology.node_type][:, self._speeds].reshape(topology.num_nodes, -1, 2).all(-1)
        if topology.tied is None:
            return held
        ids = topology.tied[:, [point[0] for point in self.shape.points]]
        return torch.isin(ids, ids[held])

    def _channelled(
        self, operators: Sequence[Operator], x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> Float[Tensor, "*batch nodes free"]:
        """What the channels do to the free coordinates, each graph's with its operator's coefficients."""
        coefficients = torch.stack([o.channels for o in operators if o.channels is not None])
        held = self.held_points(topology)
        return self.channels.combined(x, topology, held, coefficients)[..., self._speed_order]

    def _behind(
        self, changes: Float[Tensor, "*batch nodes free k"], x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> Float[Tensor, "*batch nodes pairs k"]:
        """The pushes along pairs behind changes of the free coordinates."""
        return self.channels.behind(changes[..., self._speeds, :], x, topology, self.held_points(topology))

    @property
    def _speeds(self) -> list[int]:
        """Where each velocity coordinate of the points stands among the free coordinates."""
        return [self.free.index(c) for point in self.shape.points for c in point[2:]]

    @property
    def _speed_order(self) -> Tensor:
        return torch.argsort(torch.tensor(self._speeds))
