"""Real grids as parameters of the PowerGrid world, from pandapower (extra `grid`), and random ones that resemble them.

From a solved power flow with admittances Y = G + jB and voltages V_i = Vref_i exp(j th_i):

    H_ij = Vref_i (G_ij sin th_ij - B_ij cos th_ij) Vref_j

so that v = 1 is the power flow's state and -v_i (H v)_i the reactive power that the lines bring to node i while the
angles stay. q0 is the reactive demand (static generators included), K_i = 0.1 |H_ii| at generators and the external
grid, and a node without injection whose H_ii is negative is eliminated (Kron), which is exact.

The equation of node i is divided by c_i = |H_ii| / 12.5 (`scale`), which leaves v(t) as it is: on every grid K is then
1.25, an action of +-0.5 shifts a set-point by u / K = +-0.4, and nodes look alike whether their lines carry 5 MVA
or 5 GVA. Generators have the time constants of random grids (0.6 s and 0.1 s); the loads' D is 1 s times sum K, shared
in proportion to |H_ii|, all in the grid's own units, and M = D / 15.

Random ones: nodes scattered over a square, a shortest tree through them, some more short lines (2 to 3.5 lines end
at a node, as in transmission grids) and now and then a hub; susceptances over one to three orders of magnitude;
generators rather where lines are weak; demand at two nodes of three, met by the generators. Their loads' time is not
1 s but 0.3 to 2 s. A model for real grids is trained on these.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Complex, Float, Int
from scipy.sparse.csgraph import minimum_spanning_tree

from gce.envs.grid_batch import GridParameters
from gce.errors import InputError

CASES = {
    "case14": "case14",
    "case39": "case39",
    "case118": "case118",
    "case145": "case145",
    "case300": "case300",
    "illinois200": "case_illinois200",
}
"""Our names of the grids, and pandapower's."""
MESHED = "meshed"
"""The name of random grids that resemble them, and of the model trained on these."""

STIFFNESS, GAIN = 12.5, 0.1
VOLTAGE_TIME, FILTER_TIME, LOAD_TIME = 0.6, 0.1, 1.0
LOAD_TIMES, DEMANDS = (0.3, 2.0), (0.02, 0.3)
"""Of random grids, which are to be slower and faster than real ones, and less and more loaded: the loads' time [s] and
the sum of reactive demand as a share of sum K."""
MOST_DEMAND = 0.05
"""Of a node of a random grid, as a share of its lines' susceptance."""


@dataclass(frozen=True, eq=False)
class PowerFlow:
    """A solved power flow, all per unit: Y, V, reactive demand and generation, and where the generators are."""

    admittance: Complex[np.ndarray, "nodes nodes"]
    voltage: Complex[np.ndarray, " nodes"]
    demand: Float[np.ndarray, " nodes"]
    generation: Float[np.ndarray, " nodes"]
    is_generator: Bool[np.ndarray, " nodes"]
    names: np.ndarray

    def network(self) -> Float[np.ndarray, "nodes nodes"]:
        """H."""
        return -(np.conj(self.voltage)[:, None] * self.admittance * self.voltage).imag

    def without(self, node: int) -> PowerFlow:
        """The same flow without a node that injects nothing (Kron reduction)."""
        Y, rest = self.admittance, np.arange(len(self.voltage)) != node
        reduced = Y[np.ix_(rest, rest)] - np.outer(Y[rest, node], Y[node, rest]) / Y[node, node]
        return PowerFlow(
            reduced, *(a[rest] for a in (self.voltage, self.demand, self.generation, self.is_generator, self.names))
        )


def check_case(case: str) -> None:
    if case not in CASES:
        raise InputError(f"there is no real grid {case!r}; the real grids are {', '.join(CASES)}")


@lru_cache
def power_flow(case: str, reactive_load: float = 1.0) -> PowerFlow:
    """The power flow of a real grid, solved by pandapower; reactive_load: a factor on the loads' reactive power."""
    check_case(case)
    try:
        import pandapower
        import pandapower.networks
    except ImportError:
        raise InputError(f"{case} comes with pandapower, which is not installed: pip install pandapower") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("pandapower").setLevel(logging.ERROR)
        net = getattr(pandapower.networks, CASES[case])()
        net.load.q_mvar *= reactive_load
        pandapower.runpp(net, numba=False, tolerance_mva=1e-9, max_iteration=50)
    inside = net._ppc["internal"]
    Y, V, base = inside["Ybus"].toarray(), inside["V"], inside["baseMVA"]
    bus, gen = inside["bus"].real, inside["gen"].real
    is_generator = np.zeros(len(V), bool)
    is_generator[gen[:, 0].astype(int)] = True
    # A bus's reactive demand is the fourth column of its table; a generator's bus and output are the first and third.
    generation = np.bincount(gen[:, 0].astype(int), gen[:, 2], len(V)) / base
    own = net._pd2ppc_lookups["bus"]
    names = np.empty(len(V), object)
    names[own[net.bus.index]] = net.bus.name.astype(str)
    return PowerFlow(Y, V, bus[:, 3] / base, generation, is_generator, names)


@lru_cache(maxsize=len(CASES))
def case_parameters(case: str) -> GridParameters:
    """A real grid without stress and offset."""
    return parameters_of(reduced(power_flow(case)))


def bus_names(case: str) -> tuple[str, ...]:
    """What the case calls the buses that are left."""
    return tuple(reduced(power_flow(case)).names)


def reduced(flow: PowerFlow) -> PowerFlow:
    """Without nodes of negative self-susceptance, which would run away; they must inject nothing."""
    injected = np.abs(flow.voltage * np.conj(flow.admittance @ flow.voltage))
    for node in np.flatnonzero(np.diag(flow.network()) <= 0)[::-1]:
        if flow.is_generator[node] or injected[node] > 1e-6:
            raise InputError(
                f"node {node} of the grid has a negative self-susceptance and injects power, which this world has no "
                "model of; choose another case"
            )
        flow = flow.without(int(node))
    return flow


def parameters_of(flow: PowerFlow) -> GridParameters:
    return scaled(flow.network(), flow.demand, flow.is_generator)


def draw_meshed(num_nodes: int, rng: np.random.Generator) -> GridParameters:
    """A random grid that resembles real ones, without stress and offset."""
    places = rng.uniform(0, 1, (num_nodes, 2))
    lines = short_lines(places, extra=round(rng.uniform(0, 0.75) * num_nodes))
    i, j = with_hubs(lines, places, rng, count=round(rng.uniform(0, 0.04) * num_nodes)).T
    b = np.exp(rng.uniform(0.5, 1.5) * rng.standard_normal(len(i)))
    H = np.zeros((num_nodes, num_nodes))
    H[i, j] = H[j, i] = -b
    total = -H.sum(axis=1) if num_nodes > 1 else np.ones(1)
    # Power stations stand behind transformers: the weaker a node's lines, the likelier it is one (drawn without
    # replacement by weights total^-k, k of the grid).
    keys = rng.gumbel(size=num_nodes) - rng.uniform(0, 3) * np.log(total)
    g = np.zeros(num_nodes, bool)
    g[np.argsort(-keys)[: max(1, round(rng.uniform(0.1, 0.5) * num_nodes))]] = True
    demand = total * np.exp(rng.standard_normal(num_nodes)) * (rng.random(num_nodes) < 2 / 3)
    demand *= np.where(rng.random(num_nodes) < 0.1, -1, 1)  # capacitors
    # (H 1)_i is what node i feeds into its lines, generation less demand; over the grid both are the same.
    generation = np.where(g, total * rng.uniform(0.5, 1.5, num_nodes), 0.0)
    demand *= np.exp(rng.uniform(*np.log(DEMANDS))) * GAIN * total[g].sum() / max(np.abs(demand).sum(), 1e-9)
    demand = np.clip(demand, -MOST_DEMAND * total, MOST_DEMAND * total)  # or voltages break down
    generation *= demand.sum() / generation.sum()
    H[np.diag_indices(num_nodes)] = total + generation - demand
    return scaled(H, demand, g, load_time=np.exp(rng.uniform(*np.log(LOAD_TIMES))))


def with_hubs(
    lines: Int[np.ndarray, "lines 2"], places: Float[np.ndarray, "nodes 2"], rng: np.random.Generator, count: int
) -> Int[np.ndarray, "more 2"]:
    """The lines and those of so many hubs to their 5 to 15 nearest places."""
    known = {(min(pair), max(pair)) for pair in lines.tolist()}
    for hub in rng.permutation(len(places))[:count].tolist():
        nearest = np.argsort(np.linalg.norm(places - places[hub], axis=1))[1 : 1 + rng.integers(5, 16)]
        known |= {(min(hub, other), max(hub, other)) for other in nearest.tolist()}
    return np.array(sorted(known), np.int64).reshape(-1, 2)


def short_lines(places: Float[np.ndarray, "nodes 2"], extra: int) -> Int[np.ndarray, "lines 2"]:
    """The shortest tree through places, and so many of the shortest other pairs of each place with its neighbours."""
    distance = np.linalg.norm(places[:, None] - places, axis=2)
    tree = np.argwhere(minimum_spanning_tree(distance).toarray() > 0)
    known = {(min(pair), max(pair)) for pair in tree.tolist()}
    nearest = np.argsort(distance, axis=1)[:, 1:4]
    near = {(min(i, j), max(i, j)) for i, row in enumerate(nearest.tolist()) for j in row}
    others = sorted(near - known, key=lambda pair: distance[pair])
    return np.array(sorted(known) + others[:extra], np.int64).reshape(-1, 2)


def scaled(
    H: Float[np.ndarray, "nodes nodes"],
    demand: Float[np.ndarray, " nodes"],
    g: Bool[np.ndarray, " nodes"],
    load_time: float = LOAD_TIME,
) -> GridParameters:
    """The grid of a network, the reactive demand of its nodes and where its generators are."""
    own = np.abs(np.diag(H))
    scale = own / STIFFNESS
    i, j = np.nonzero(np.triu((H != 0) | (H.T != 0), 1))
    gain = np.where(g, GAIN * own, 0.0)
    damping = np.where(g, (VOLTAGE_TIME + FILTER_TIME) * gain, load_time * gain.sum() * own / max(own[~g].sum(), 1e-9))
    inertia = np.where(g, VOLTAGE_TIME * FILTER_TIME * gain, damping / 15)
    nothing = np.zeros(len(own))
    return GridParameters(
        lines=np.stack([i, j], axis=1),
        susceptance=-H[i, j] / scale[i],
        back_susceptance=-H[j, i] / scale[j],
        is_generator=g,
        gain=gain / scale,
        inertia=inertia / scale,
        damping=damping / scale,
        load=demand / scale,
        stress=nothing,
        offset=nothing,
        shunt=H.sum(axis=1) / scale,
        scale=scale,
        implicitness=1.0,
    )
