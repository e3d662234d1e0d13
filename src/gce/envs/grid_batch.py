"""Voltages of power grids: the equations, their equilibrium, and many grids stepped at once.

With v_i = V_i / Vref_i, the voltage of node i over its reference, and w = v' [1/s]:

    M_i w_i' + D_i w_i = F_i(v, u, xi)
    F_i = qbase_i + g_i [K_i (1 - v_i) + u_i] - q0_i (1 + s_i + xi_i) (az v_i^2 + ai v_i + ap) - v_i (H v)_i
    H_ij = -b_ij,   H_ii = sum_j b_ij + y_i,   qbase_i = q0_i + (H 1)_i + offset_i
    d xi = -xi / tau dt + sigma sqrt(2 / tau) dW       (a part of each node's own and a part common to all nodes)

g is 1 at generators (a droop-controlled source behind a filter) and 0 at loads; the bracket of az, ai, ap holds the
constant impedance, current and power shares of a load. v = 1 is an equilibrium when s = xi = u = offset = 0. All
quantities are per unit, times in seconds. On random graphs b_ij = b_ji and y_i = -cap q0_i (capacitors); a real grid
(`gce.envs.real_grids`) gives b_ij, b_ji and y.

    M inertia, D damping, K gain, q0 load, s stress, b susceptance of a line, y shunt, (az, ai, ap) zip_shares,
    cap capacitor, sigma noise_std and common_noise_std, tau noise_time, theta implicitness; v, w, xi, u and H keep
    their letters

A step of 0.05 s is two linearly implicit steps of h = 0.025 s. With J0 = -dF/dv at v = 1, s = xi = 0,

    (M / theta + h D + theta h^2 J0) wm = M / theta w + h F(v, u, xi)
    v <- v + h wm,   w <- (wm - (1 - theta) w) / theta

so the matrix is factorised once, stiff modes stay stable, and the steady state is exact whatever J0 is. theta = 1/2 is
the midpoint rule; theta = 1, implicit Euler, damps the fast modes of real grids (L-stable).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float
from scipy import sparse
from scipy.sparse.linalg import splu

from gce.envs.parts import check_network
from gce.errors import InputError

SUBSTEPS, SUBSTEP = 2, 0.025
ACTION_LIMIT = 0.5
OBSERVATION_STD = np.array([0.0565, 0.0427])
"""Fixed units of v and its rate: process noise is a share of these."""

DENSE_UP_TO = 600
"""Nodes up to which a precomputed inverse is faster than sparse triangular solves (both measured, every topology)."""
NOISE_CHUNK = 16
"""Steps of load noise drawn at once. A generator's stream does not depend on how it is cut, so paths don't either."""

Nodes = Float[np.ndarray, " nodes"]
Numbers = Sequence[float | int] | np.ndarray
PER_NODE = ("gain", "inertia", "damping", "load", "stress", "offset")
WHERE_REAL = ("back_susceptance", "shunt", "scale")
"""What only real grids state; empty elsewhere."""


@dataclass(frozen=True)
class GridParameters:
    """One grid. Lists and arrays become tuples of plain numbers, so that JSON gives back an equal object.

    lines: (i, j) pairs, each line once; susceptance: b_ij of each line, and b_ji too unless back_susceptance has it.
    is_generator, gain, inertia, damping, load, stress, offset: g, K, M, D, q0, s and offset of each node; K, the
        offset and the action act at generators only (an offset at a load is refused).
    zip_shares: az, ai, ap, which add up to 1; capacitor: the share of q0 that capacitors supply.
    noise_std, common_noise_std: stationary std of the load noise's two parts; noise_time: their time constant [s].
    start_std: std of v around the equilibrium at the start.
    back_susceptance: b_ji of each line, where it is not b_ij; both may then be negative (series capacitors).
    shunt: y of each node; without it, what the capacitors give. scale: what one unit of each node's reactive power is
        [p.u. of the grid], where not 1. implicitness: theta, from 1/2 to 1.
    """

    lines: Sequence[Sequence[int]] | np.ndarray
    susceptance: Numbers
    is_generator: Sequence[bool] | np.ndarray
    gain: Numbers
    inertia: Numbers
    damping: Numbers
    load: Numbers
    stress: Numbers
    offset: Numbers
    zip_shares: Numbers = (0.3, 0.3, 0.4)
    capacitor: float = 0.3
    noise_std: float = 0.06
    common_noise_std: float = 0.015
    noise_time: float = 1.0
    start_std: float = 0.002
    back_susceptance: Numbers = ()
    shunt: Numbers = ()
    scale: Numbers = ()
    implicitness: float = 0.5

    def __post_init__(self) -> None:
        for name in ("susceptance", *PER_NODE, "zip_shares", *WHERE_REAL):
            object.__setattr__(self, name, tuple(np.asarray(getattr(self, name), np.float64).reshape(-1).tolist()))
        for name in ("capacitor", "noise_std", "common_noise_std", "noise_time", "start_std", "implicitness"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "is_generator", tuple(bool(g) for g in self.is_generator))
        object.__setattr__(self, "lines", tuple((int(i), int(j)) for i, j in self.lines))
        self._check()

    @property
    def num_nodes(self) -> int:
        return len(self.is_generator)

    def both_ways(self) -> Float[np.ndarray, " lines_twice"]:
        """b_ij of all lines (i, j), then b_ji."""
        return np.array([*self.susceptance, *(self.back_susceptance or self.susceptance)])

    def _check(self) -> None:
        nodes, pairs = self.num_nodes, np.array(self.lines, np.int64).reshape(-1, 2)
        if not any(self.is_generator):
            raise InputError("grid: is_generator names no generator; a grid needs at least one")
        for name in (*PER_NODE, "shunt", "scale"):
            count = len(getattr(self, name))
            if count != nodes and (count or name not in WHERE_REAL):
                raise InputError(f"grid: {name} has {count} values for {nodes} nodes; give one each")
        for name in ("susceptance", "back_susceptance"):
            count = len(getattr(self, name))
            if count != len(pairs) and (count or name not in WHERE_REAL):
                raise InputError(f"grid: {count} {name} values for {len(pairs)} lines; give one each")
        apart = "connect all nodes; simulate each island as a grid of its own"
        check_network("grid", pairs, nodes, "line", "node", apart)
        for field in fields(self):
            values = np.asarray(getattr(self, field.name), np.float64)
            if not np.isfinite(values).all():
                raise InputError(f"grid: {field.name} holds {values[~np.isfinite(values)][0]}; give finite numbers")
        both_ways = ("susceptance",) if not self.back_susceptance else ()
        for name in (*both_ways, "inertia", "noise_time", "scale"):
            if np.min(getattr(self, name), initial=1.0) <= 0:
                raise InputError(f"grid: {name} holds {np.min(getattr(self, name))}, expected positive numbers")
        for name in ("gain", "damping", "noise_std", "common_noise_std", "start_std"):
            if np.min(getattr(self, name)) < 0:
                raise InputError(f"grid: {name} holds {np.min(getattr(self, name))}, expected no negative numbers")
        if not 0.5 <= self.implicitness <= 1:
            raise InputError(
                f"grid: implicitness is {self.implicitness}, expected 1/2 (midpoint) to 1 (implicit Euler)"
            )
        if len(self.zip_shares) != 3 or abs(sum(self.zip_shares) - 1) > 1e-9:
            raise InputError(f"grid: zip_shares are {self.zip_shares}, expected three numbers that add up to 1")
        if any(self.offset[i] and not self.is_generator[i] for i in range(nodes)):
            raise InputError("grid: offset is not 0 at a load; only generators have one, loads have stress")


@dataclass(frozen=True, eq=False)
class GridEquations:
    """F and its slope, for one grid or several side by side (H is then block diagonal).

    H: network; is_generator: g; droop: g K; source: what does not depend on v, qbase + g K; theta: of each node's grid.
    """

    H: sparse.csr_array
    is_generator: Bool[np.ndarray, " nodes"]
    droop: Nodes
    inertia: Nodes
    damping: Nodes
    load: Nodes
    stress: Nodes
    source: Nodes
    zip_shares: Float[np.ndarray, "3 nodes"]
    theta: Nodes

    @classmethod
    def of(cls, parameters: GridParameters) -> GridEquations:
        p, n = parameters, parameters.num_nodes
        gain, inertia, damping, load, stress, offset = (np.array(getattr(p, name)) for name in PER_NODE)
        is_generator = np.array(p.is_generator)
        lines, b = np.array(p.lines, np.int64).reshape(-1, 2), p.both_ways()
        ends, rows = lines.T.reshape(-1), np.arange(n)
        shunt = np.array(p.shunt) if p.shunt else -p.capacitor * load
        diagonal = np.bincount(ends, b, n) + shunt
        # The diagonal is stored even where it is 0, so that `slope` can fill it in.
        places = (np.concatenate([ends, rows]), np.concatenate([lines[:, ::-1].T.reshape(-1), rows]))
        H = sparse.csr_array((np.concatenate([-b, diagonal]), places), shape=(n, n))
        droop = is_generator * gain
        # H 1 is the shunt: the Laplacian's rows add up to 0, and rounding should not move the equilibrium.
        source = load + shunt + offset + droop
        shares = np.repeat(np.array(p.zip_shares)[:, None], n, axis=1)
        theta = np.full(n, p.implicitness)
        return cls(H, is_generator, droop, inertia, damping, load, stress, source, shares, theta)

    @classmethod
    def side_by_side(cls, grids: Sequence[GridEquations]) -> GridEquations:
        H = sparse.csr_array(sparse.block_diag([grid.H for grid in grids], format="csr"))
        rest = [f.name for f in fields(cls)[1:]]
        return cls(H, *(np.concatenate([getattr(grid, name) for grid in grids], axis=-1) for name in rest))

    def force(self, v: Nodes, u: Nodes | float = 0.0, xi: Nodes | float = 0.0) -> Nodes:
        """F(v, u, xi)."""
        az, ai, ap = self.zip_shares
        demand = self.load * (1 + self.stress + xi) * ((az * v + ai) * v + ap)
        return self.source + self.is_generator * u - self.droop * v - demand - v * (self.H @ v)

    def slope(self, v: Nodes, stressed: bool = True) -> sparse.csr_array:
        """dF/dv at v for u = xi = 0, or without stress too."""
        az, ai, _ = self.zip_shares
        demand = self.load * (1 + self.stress * stressed) * (2 * az * v + ai)
        slope = self.H.copy()
        slope.data *= -np.repeat(v, np.diff(slope.indptr))
        slope.setdiag(slope.diagonal() - self.droop - demand - self.H @ v)
        return slope

    def step_matrix(self) -> sparse.csc_array:
        """M / theta + h D + theta h^2 J0."""
        J0 = -self.slope(np.ones_like(self.load), stressed=False)
        diagonal = self.inertia / self.theta + SUBSTEP * self.damping
        return sparse.csc_array(sparse.diags_array(diagonal) + sparse.diags_array(SUBSTEP**2 * self.theta) @ J0)

    def equilibrium(self, iterations: int = 30) -> Nodes | None:
        """F(v, 0, 0) = 0 by Newton from v = 1; None where it finds none (voltage collapse)."""
        v = np.ones_like(self.load)
        for _ in range(iterations):
            force = self.force(v)
            if np.abs(force).max() < 1e-12:
                return v
            v = v - splu(sparse.csc_array(self.slope(v))).solve(force)
            if not (np.isfinite(v).all() and v.min() > 0):
                return None
        return v if np.abs(self.force(v)).max() < 1e-9 else None


def solver(matrix: sparse.csc_array) -> Callable[[Nodes], Nodes]:
    """x -> matrix^-1 x, by an inverse or by sparse factors; the one place where size decides.

    The inverse is built a column and applied a row at a time: `inv` and `@` would be faster, but their last digits
    depend on the number of BLAS threads, and a recording should not.
    """
    factors, n = splu(matrix), matrix.shape[0]
    if n > DENSE_UP_TO:
        return factors.solve
    return partial(np.vecdot, np.stack([factors.solve(column) for column in np.eye(n)], axis=1))


class GridBatch:
    """Grids of any sizes that step at once; the same grid may come several times.

    The nodes of all grids lie one after the other in flat arrays, `parts[k]` is grid k's slice. Sums run within a
    grid and in one order, and each grid has its own random generators: its path is the same, bit for bit, whatever
    else is in the batch.

    v, w, xi: voltages over their references, their rates [1/s], load noise.
    """

    def __init__(self, grids: Sequence[GridParameters]) -> None:
        if not grids:
            raise InputError("a batch needs at least one grid, got none")
        distinct: dict[GridParameters, tuple[GridEquations, Callable[[Nodes], Nodes]]] = {}
        for grid in grids:
            if grid not in distinct:
                equations = GridEquations.of(grid)
                distinct[grid] = equations, solver(equations.step_matrix())
        self.grids = tuple(grids)
        starts = np.cumsum([0, *(grid.num_nodes for grid in grids)]).tolist()
        self.parts = [slice(start, end) for start, end in pairwise(starts)]
        self.equations = GridEquations.side_by_side([distinct[grid][0] for grid in grids])
        self._solvers = [distinct[grid][1] for grid in grids]
        self._equilibria = {grid: equations.equilibrium() for grid, (equations, _) in distinct.items()}
        self._inertia = self.equations.inertia / self.equations.theta
        self._decay = np.concatenate([np.full(g.num_nodes, np.exp(-SUBSTEP / g.noise_time)) for g in grids])

    @property
    def num_nodes(self) -> int:
        return len(self._decay)

    def reset(self, rngs: Sequence[np.random.Generator], process_noise: float = 0.0) -> None:
        """Start near the equilibrium, the load noise in its stationary law.

        rngs: one generator a grid, which the batch keeps for the load noise and draws from ahead of time.
        process_noise: share of the fixed units added to v and w at every step, from streams of its own, so that a
            grid sees the same loads whatever the process noise.
        """
        if len(rngs) != len(self.grids):
            raise InputError(f"{len(rngs)} generators for {len(self.grids)} grids; give one each")
        self._rngs, self._process_noise = list(rngs), process_noise
        self._process_rngs = [rng.spawn(1)[0] for rng in rngs]
        self.v, self.w, self.xi = (np.zeros(self.num_nodes) for _ in range(3))
        for grid, part, rng in zip(self.grids, self.parts, rngs, strict=True):
            equilibrium = self._equilibria[grid]
            if equilibrium is None:
                raise InputError("grid: the grid has no equilibrium near v = 1; lower its stress or offset")
            self.v[part] = equilibrium + grid.start_std * rng.standard_normal(grid.num_nodes)
            self.xi[part] = _load_shocks(grid, rng.standard_normal(grid.num_nodes + 1))
        self._shocks = np.empty((NOISE_CHUNK, SUBSTEPS, self.num_nodes))
        self._used = NOISE_CHUNK

    def step(self, actions: Nodes) -> None:
        """0.05 s under these actions, which are clipped to +-0.5 and ignored at loads."""
        h, equations = SUBSTEP, self.equations
        u = np.clip(actions, -ACTION_LIMIT, ACTION_LIMIT)
        middle = np.empty(self.num_nodes)
        for shock in self._next_shocks():
            self.xi = self._decay * self.xi + shock
            right = self._inertia * self.w + h * equations.force(self.v, u, self.xi)
            for part, solve in zip(self.parts, self._solvers, strict=True):
                middle[part] = solve(right[part])
            self.v = self.v + h * middle
            self.w = (middle - (1 - equations.theta) * self.w) / equations.theta
        if self._process_noise:
            for part, rng in zip(self.parts, self._process_rngs, strict=True):
                kick = rng.standard_normal((2, part.stop - part.start))
                self.v[part] += self._process_noise * OBSERVATION_STD[0] * kick[0]
                self.w[part] += self._process_noise * OBSERVATION_STD[1] * kick[1]

    def observe(self) -> Float[np.ndarray, "nodes 2"]:
        return np.stack([self.v, self.w], axis=1)

    def run(self, actions: Float[np.ndarray, "steps nodes"]) -> Float[np.ndarray, "steps_and_one nodes 2"]:
        """The observations of so many steps, the first before the first action."""
        observations = np.empty((len(actions) + 1, self.num_nodes, 2))
        observations[0] = self.observe()
        for t, action in enumerate(actions):
            self.step(action)
            observations[t + 1] = self.observe()
        return observations

    def _next_shocks(self) -> Float[np.ndarray, "substeps nodes"]:
        """What the load noise gains in each substep of the coming step."""
        if self._used == NOISE_CHUNK:
            for grid, part, rng in zip(self.grids, self.parts, self._rngs, strict=True):
                normal = rng.standard_normal((NOISE_CHUNK, SUBSTEPS, grid.num_nodes + 1))
                share = np.sqrt(1 - np.exp(-2 * SUBSTEP / grid.noise_time))
                self._shocks[:, :, part] = share * _load_shocks(grid, normal)
            self._used = 0
        self._used += 1
        return self._shocks[self._used - 1]


def _load_shocks(grid: GridParameters, normal: np.ndarray) -> np.ndarray:
    """Each node's own part plus the common one. Both decay alike, so their sum is one process a node."""
    return grid.noise_std * normal[..., :-1] + grid.common_noise_std * normal[..., -1:]
