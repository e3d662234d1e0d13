"""Features of the general learner: a network of the state, the action and a few latent numbers of the system.

    y_i = V h_i + C' h_i + W_i' z,   h = GNN(x, a, theta)

y: increments of the free coordinates in the node's own frame (`motion`). V is learned here for all systems, theta is
found for each, C and W follow in closed form (`gce.operators.hierarchy`). A round of messages over edges j to i:

    h_i <- h_i + f(h_i, sum over j of g(S h_j + R h_i + E e_ij))

What acts within a step on all (rigid rods) comes by one linear system on the graph, b and w learned, a a channel:

    (1 + sum over j of |w_ij|) u_i - sum over j of w_ij u_j = b_i
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gce.errors import InputError
from gce.features.base import Encode, Features, FeaturesConfig, StateShape
from gce.features.inputs import InputLayer
from gce.features.motion import Motion
from gce.graphs.graph import edge_places
from gce.graphs.topology import Topology

LATENTS = 32
"""How many of the latent vectors found in training a model keeps."""
SMALLEST_EDGE = 0.02


@dataclass(frozen=True)
class GeneralConfig(FeaturesConfig):
    """width of hidden layers; rounds of messages; latent numbers of a system; channels of the linear system, 0 for
    none; hops: over how many edges the dense part of a node reaches; structure: what was found in the data (`Motion`).
    """

    kind: ClassVar[str] = "general"
    width: int = 64
    rounds: int = 4
    latent: int = 4
    channels: int = 16
    hops: int = 2
    structure: dict[str, Any] = field(default_factory=dict)


def layers(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, outputs))


class Round(nn.Module):
    """One round of messages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sender, self.receiver = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.after = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.update = layers(2 * width, width, width)

    def forward(self, h: Tensor, e: Tensor, wires: Wires) -> Tensor:
        said = self.after(wires.heard(self.sender(h), self.receiver(h)) + e)
        heard = torch.zeros_like(h).index_add(0, wires.receivers, said)
        return h + self.update(torch.cat([h, heard], -1))


class Global(nn.Module):
    """The linear system on the graph."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.right, self.back = nn.Linear(width, channels), layers(width + channels, width, width)
        self.sender, self.receiver = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.weight = nn.Sequential(nn.SiLU(), nn.Linear(width, channels))

    def forward(self, h: Tensor, e: Tensor, wires: Wires) -> Tensor:
        w = self.weight(wires.heard(self.sender(h), self.receiver(h)) + e)  # [edges, batch, k]
        b, found, first, edge = self.right(h), [], 0, 0
        for nodes, edges in wires.splits:
            s, r = (ends[edge : edge + edges] - first for ends in (wires.senders, wires.receivers))
            of_graph = w[edge : edge + edges]
            A = h.new_zeros(nodes * nodes, *w.shape[1:]).index_add(0, r * nodes + s, -of_graph)
            on_diagonal = 1 + h.new_zeros(nodes, *w.shape[1:]).index_add(0, r, of_graph.abs())
            A = A.unflatten(0, (nodes, nodes)).movedim((0, 1), (-2, -1)) + torch.diag_embed(on_diagonal.movedim(0, -1))
            right = b[first : first + nodes].movedim(0, -1)
            found.append(torch.linalg.solve_ex(A, right.unsqueeze(-1))[0].squeeze(-1).movedim(-1, 0))
            first, edge = first + nodes, edge + edges
        return h + self.back(torch.cat([h, torch.cat(found)], -1))


@dataclass(frozen=True, eq=False)
class Wires:
    """A topology without the edges of nodes to themselves, and what is known of its nodes and edges.

    splits: (nodes, edges) of each of the graphs joined. places: as `edge_places` gives them.
    """

    senders: Tensor
    receivers: Tensor
    relation: Tensor
    nodes: Float[Tensor, "nodes 1 _"]
    edges: Float[Tensor, "edges 1 _"]
    splits: tuple[tuple[int, int], ...]
    places: Int[Tensor, "2 _"]

    def acted(self, by_node: Float[Tensor, "nodes batch k"]) -> Float[Tensor, "edges batch 2"]:
        """Actions on edges and on their ways back, from columns of the receivers."""
        k = by_node.shape[-1]
        ends = torch.stack([self.receivers, self.senders])
        there = (self.places >= 0) & (self.places < k)
        found = by_node.movedim(-1, 1)[ends, self.places.clamp(0, k - 1)]  # [2, edges, batch]
        return (found * there.unsqueeze(-1)).movedim(0, -1)

    def heard(
        self, sent: Float[Tensor, "nodes ..."], received: Float[Tensor, "nodes ..."]
    ) -> Float[Tensor, "edges ..."]:
        """Each edge's sender's row of the former plus its receiver's of the latter."""
        return sent.index_select(0, self.senders) + received.index_select(0, self.receivers)


class General(Features):
    """h of nodes, edges and latent numbers; beside it what is known of training: V, the latents, the mean Gram matrix.

    gram: G0, the mean of H'H / rows over the training systems, which shifts are drawn to zero by.
    """

    name = "general"
    Config = GeneralConfig
    method = "general"
    config: GeneralConfig
    gram: Tensor
    latents: Tensor
    edge_mean: Tensor
    edge_std: Tensor
    to_go: Tensor
    gone: Tensor
    gone_centre: Tensor
    linear = False
    filtered = False
    dynamics = "gce.dynamics.general:GeneralDynamics"
    adapted = "gce.system.general:GeneralSystem"
    trained = "gce.training.general:training_of_general"
    structured = False
    settings = {
        "form": "local",
        "potential": "constant",
        "reproject": True,
        "node_constants": 0.0,
        "kinematics": (),
        "points": (),
        "rest_start": False,
        "fresh_start": False,
    }

    def __init__(self, shape: StateShape, config: GeneralConfig) -> None:
        super().__init__(shape, config)
        s, w = shape, config.width
        self.motion = Motion(s.num_observations, config.structure)
        self.free = self.motion.free
        self.layer = s.input_layer(InputLayer)
        known = s.num_node_types + s.num_node_attributes
        before = (s.history - 1) * s.num_observations + s.previous_action * s.num_actions
        self.on_edges = int(config.structure.get("edge_actions", 0))
        own = len(self.motion.kept) + before + s.num_inputs - self.on_edges
        between = s.num_observations + s.num_relations + s.num_edge_attributes + 2 * bool(self.on_edges)
        self.encode = layers(own + known + config.latent, w, w)
        self.passes = nn.ModuleList(Round(w) for _ in range(config.rounds))
        self.whole = Global(w, config.channels) if config.channels else None
        self.edge = nn.Linear(between, w * (config.rounds + bool(config.channels)), bias=False)
        self.decode = layers(w, w, w)
        self.V = nn.Parameter(0.1 * torch.randn(self.num_phi, len(self.free)) / w**0.5)
        self.register_buffer("gram", torch.eye(self.num_phi))
        self.register_buffer("latents", torch.zeros(LATENTS, config.latent))
        for name in ("mean", "std"):
            self.register_buffer(f"edge_{name}", torch.ones(s.num_relations, s.num_observations) * (name == "std"))
        if config.structure.get("setpoints"):
            self.register_buffer("to_go", torch.ones(s.num_inputs))
            self.register_buffer("gone", torch.zeros(s.num_observations, s.num_inputs))
            self.register_buffer("gone_centre", torch.zeros(s.num_inputs))
        self.prepared()

    @classmethod
    def check(cls, config: Any) -> None:
        if config.form != "local":
            raise InputError(
                f"the general method has one form of the operator of its own, not {config.form!r}; leave the form out, "
                "or train by --method structured (method='structured')"
            )

    @property
    def inputs(self) -> InputLayer:
        return self.layer

    @property
    def num_phi(self) -> int:
        """With a constant."""
        return self.config.width + 1

    def reach(self, topology: Topology) -> int:
        return topology.num_nodes if self.whole is not None else self.config.rounds

    def anchored(self, topology: Topology) -> bool:
        return False

    def on(self, topology: Topology) -> Encode:
        """Of states at which nothing is done, in the mean system."""
        wires, latent = self.wires(topology), self.latents.mean(0)

        def encode(x: Tensor) -> Tensor:
            return self.hidden(self.inward(x), x.new_zeros(*x.shape[:2], self.shape.num_inputs), latent, wires)

        return encode

    def inward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """States in the units of motion."""
        d, history = self.shape.num_observations, self.shape.history
        seen = [self.motion.inward(x[..., k * d : (k + 1) * d]) for k in range(history)]
        return torch.cat([*seen, x[..., history * d :]], -1)

    def wires(self, topology: Topology) -> Wires:
        n, other = self.shape.num_node_attributes, topology.senders != topology.receivers
        units = self.layer.attribute_mean, self.layer.attribute_std
        relation, receivers = topology.edge_type[other], topology.receivers[other]
        kinds = nn.functional.one_hot(topology.node_type, self.shape.num_node_types).to(units[0].dtype)
        relations = nn.functional.one_hot(relation, self.shape.num_relations).to(units[0].dtype)
        of_nodes = (topology.node_attributes - units[0][:n]) / units[1][:n]
        of_edges = (topology.edge_attributes[other] - units[0][n:]) / units[1][n:]
        ends = torch.tensor(topology.splits, device=receivers.device).cumsum(0)
        counts = torch.bincount(torch.bucketize(receivers, ends, right=True), minlength=len(ends)).tolist()
        return Wires(
            topology.senders[other],
            receivers,
            relation,
            torch.cat([kinds, of_nodes], -1).unsqueeze(1),
            torch.cat([relations, of_edges], -1).unsqueeze(1),
            tuple(zip(topology.splits, counts, strict=True)),
            self._places(topology)[:, other] if self.on_edges else receivers.new_zeros(2, 0),
        )

    def _places(self, topology: Topology) -> Tensor:
        ends = (side.cpu().numpy() for side in (topology.senders, topology.receivers))
        return torch.as_tensor(edge_places(*ends), device=topology.receivers.device)

    def between(self, q: Float[Tensor, "nodes batch d"], wires: Wires) -> Float[Tensor, "edges batch d"]:
        """Senders less receivers, as the receivers see them."""
        return self.motion.seen_from(wires.heard(q, -q), q.index_select(0, wires.receivers))

    def hidden(
        self,
        q: Float[Tensor, "nodes batch c"],
        inputs: Float[Tensor, "nodes batch a"],
        latent: Float[Tensor, "... l"],
        wires: Wires,
    ) -> Float[Tensor, "nodes batch h"]:
        """h, the last of it 1. q: states in the units of `motion`; latent: broadcast over nodes and batch."""
        s, d, batch = self.shape, self.shape.num_observations, q.shape[:2]
        place, acted = q[..., :d], q[..., s.history * d :]
        own = [self.motion.seen_from(place, place)[..., self.motion.kept], acted]
        if s.history == 2:
            own.append(self.motion.seen_from((place - q[..., d : 2 * d]) / self.motion.step, place))
        inputs = self.missing(place, inputs)
        if s.late_action:  # felt through the action before, which the state holds
            inputs = torch.cat([torch.zeros_like(acted), inputs[..., s.num_actions :]], -1)
        told = [wires.edges.expand(-1, batch[1], -1)]
        if self.on_edges:
            a = s.num_actions
            by_node = (acted if s.late_action else inputs)[..., a - self.on_edges : a]
            told.append(wires.acted(by_node))
            inputs = torch.cat([inputs[..., : a - self.on_edges], inputs[..., a:]], -1)
        known = wires.nodes.expand(-1, batch[1], -1)
        h = self.encode(torch.cat([*own, inputs, known, latent.expand(*batch, -1)], -1))
        e = (self.between(place, wires) - self.edge_mean[wires.relation][:, None]) / self.edge_std[wires.relation][
            :, None
        ]
        of_edges = self.edge(torch.cat([e, *told], -1)).split(self.config.width, -1)
        for k, one in enumerate(self.passes):
            if k == self.config.rounds // 2 and self.whole is not None:
                h = self.whole(h, of_edges[-1], wires)
            h = one(h, of_edges[k], wires)
        return torch.cat([self.decode(h), torch.ones_like(h[..., :1])], -1)

    def measure(
        self,
        mean: Float[Tensor, " d"],
        std: Float[Tensor, " d"],
        step: Float[Tensor, " d"],
        push: Float[Tensor, " a"],
    ) -> None:
        self.motion.set_units(mean, std, step)
        for k, c, spread in self.config.structure.get("setpoints", ()):  # (a - x_c) / spread in the place of a
            self.to_go[k] = push[k] / spread
            self.gone[c, k], self.gone_centre[k] = self.motion.unit[c] / spread, self.motion.centre[c] / spread

    def missing(self, q: Float[Tensor, "*batch d"], inputs: Float[Tensor, "*batch a"]) -> Float[Tensor, "*batch a"]:
        """Inputs, what is missing to a setpoint in its place."""
        if not self.config.structure.get("setpoints"):
            return inputs
        return inputs * self.to_go - q @ self.gone - self.gone_centre

    @torch.no_grad()
    def prepare(self, samples: Iterable[tuple[Float[Tensor, "nodes batch state"], Topology]]) -> None:
        """Units of attributes, and of differences along each relation as receivers see them."""
        every = list(samples)
        super().prepare(iter(every))
        rows: list[list[Tensor]] = [[] for _ in self.edge_mean]
        for x, topology in every:
            wires = self.wires(topology)
            seen = self.between(self.motion.inward(x[..., : self.shape.num_observations]), wires)
            for relation in wires.relation.unique().tolist():
                rows[relation].append(seen[wires.relation == relation].flatten(0, 1))
        for relation, found in enumerate(rows):
            if found:
                together = torch.cat(found)
                self.edge_mean[relation] = together.mean(0)
                self.edge_std[relation] = together.std(0).clamp_min(SMALLEST_EDGE)
