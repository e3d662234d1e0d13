"""Derivatives of implicit features in a fixed combination, by the implicit function theorem.

The velocity change y of the corners of a body under one head solves, with D the difference across a pair p,

    R(Q, V, a, y) = diag(m) y + sum_p D_p' [ h_p u_p (u_p . D_p y) - f_p ] = 0

u = DQ / |DQ|, and f_p the pair's push: along u by its stretch and rate, along the pair's earlier direction by the
action. So dy = -(diag(m) + G' h G)^-1 dR at fixed y, and dR is a sum of 2 x 2 blocks, one a pair. A medium's resistance
acts on single corners in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.features.body_channels import COUPLINGS, ImplicitLayer
from gce.graphs.topology import Topology


@dataclass(frozen=True)
class Slopes:
    """d (velocity change of corner i) / d (position, velocity of corner j; action of node k), physical units."""

    by_position: Float[Tensor, "steps i2 j2"]
    by_velocity: Float[Tensor, "steps i2 j2"]
    by_action: Float[Tensor, "steps i2 nodes"]


def slopes(
    layer: ImplicitLayer,
    x: Float[Tensor, "steps nodes state"],
    topology: Topology,
    held: Bool[Tensor, "nodes points"],
    coefficients: Float[Tensor, "1 channels"],
    switch: float = 0.0,
) -> Slopes:
    """For one graph, in double precision; switch: over which width of an action a medium comes into play."""
    x = x.double()
    inputs, bodies = layer.inputs, layer._bodies(topology, held)
    q, w = inputs.points_of(x)
    first, second = (list(side) for side in zip(*inputs.pairs, strict=True))
    Dq = (q[..., second, :] - q[..., first, :]).flatten(1, 2)
    Dw = (w[..., second, :] - w[..., first, :]).flatten(1, 2)
    pairs, corners = Dq.shape[1], bodies.size
    node = torch.arange(topology.num_nodes).repeat_interleave(len(inputs.pairs))
    action = x[:, node, inputs.num_state - 1]
    length, u, Pu = _direction(Dq)
    _, ue, Pe = _direction(Dq - layer.dt * Dw)
    kind = topology.node_type
    mean, std = (getattr(inputs, f"length_{k}")[kind].flatten().double() for k in ("mean", "std"))
    rate_std = inputs.rate_std[kind].flatten().double()

    eye = torch.eye(corners, dtype=x.dtype)
    across = eye[bodies.ends[:, 1]] - eye[bodies.ends[:, 0]]  # D, [pairs, corners]
    outer = (across[:, :, None] * across[:, None, :]).reshape(pairs, -1)
    of_node = torch.nn.functional.one_hot(node, topology.num_nodes).to(x.dtype)
    from_action = (across[:, :, None] * of_node[:, None, :]).reshape(pairs, -1)

    heads = coefficients.double().unflatten(1, (len(COUPLINGS), -1))[0]
    signals = layer.num_signals * layer.num_kinds
    along = heads[:, :signals].unflatten(1, (layer.num_signals, layer.num_kinds))
    factor = torch.linalg.cholesky_ex(layer._coupled(bodies, u, layer.log_coupling.exp()))[0][:, :, 0]
    total: list[Tensor] = []
    for k in range(len(COUPLINGS)):
        c0, c1, c2, c3 = (along[k, s][bodies.kind] for s in range(4))
        c1, c2 = c1 / std, c2 / rate_std
        rate = (u * Dw).sum(-1)
        tension = c0 + c1 * (length - mean) + c2 * rate
        push = tension[..., None] * u + (c3 * action)[..., None] * ue
        felt = torch.einsum("pc,tpx->tcx", across, push)
        by_q = _outer(u, c1[:, None] * u + c2[:, None] * _apply(Pu, Dw)) + tension[..., None, None] * Pu
        by_q = by_q + (c3 * action)[..., None, None] * Pe
        by_w = c2[:, None, None] * _outer(u, u) - layer.dt * (c3 * action)[..., None, None] * Pe
        by_a = c3[:, None] * ue
        ends = None
        if layer.drag:
            share = heads[k, signals:][bodies.node_type] * bodies.outer.double()
            ends = _resistance(layer, x, share, across, of_node, switch)
            felt = felt + ends.felt
        y = torch.cholesky_solve(felt.flatten(1)[..., None], factor[:, k])[..., 0].unflatten(1, (corners, 2))
        Dy = torch.einsum("pc,tcx->tpx", across, y)
        h = layer.log_coupling[k].exp().double()[bodies.kind]
        slack = (u * Dy).sum(-1)[..., None, None] * Pu + _outer(u, _apply(Pu, Dy))
        by_q = by_q - h[:, None, None] * slack
        R_q, R_w = _assemble(outer, by_q, corners), _assemble(outer, by_w, corners)
        R_a = torch.einsum("pk,tpx->tkx", from_action, by_a).unflatten(1, (corners, -1)).movedim(-1, 2).flatten(1, 2)
        if ends is not None:
            R_q, R_w = R_q + ends.by_position, R_w + ends.by_velocity
            R_a = R_a + ends.by_action
        total.append(torch.cholesky_solve(torch.cat([R_q, R_w, R_a], dim=-1), factor[:, k]))
    by_q, by_w, by_a = torch.stack(total).sum(0).split([2 * corners, 2 * corners, topology.num_nodes], dim=-1)
    return Slopes(by_q, by_w, by_a)


@dataclass(frozen=True)
class _Ends:
    felt: Float[Tensor, "steps corners 2"]
    by_position: Float[Tensor, "steps i2 j2"]
    by_velocity: Float[Tensor, "steps i2 j2"]
    by_action: Float[Tensor, "steps i2 nodes"]


def _resistance(
    layer: ImplicitLayer, x: Tensor, share: Tensor, across: Tensor, of_node: Tensor, switch: float
) -> _Ends:
    """-r(s) n at the ends of outer sides, r = s^2 / (1 + (s / S)^2), s = w . n where positive, n outward."""
    inputs = layer.inputs
    q, w = inputs.points_of(x)
    first, second = (list(side) for side in zip(*inputs.pairs, strict=True))
    side = q[..., second, :] - q[..., first, :]
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=x.dtype)
    tau = side @ turn.T
    outward = (q[..., second, :] + q[..., first, :]) / 2 - q.mean(-2, keepdim=True)
    sign = torch.sign((tau * outward).sum(-1))
    felt_by = share.nonzero()[:, 0]  # outer sides alone
    share, across, of_node = share[felt_by], across[felt_by], of_node[felt_by]
    sign = sign.flatten(1, 2)[:, felt_by]
    _, normal, by_side = _direction(tau.flatten(1, 2)[:, felt_by])
    normal, by_side = normal * sign[..., None], by_side @ turn * sign[..., None, None]
    action = x[..., inputs.num_state - 1].repeat_interleave(len(inputs.pairs), dim=1)[:, felt_by]
    on = torch.sigmoid(-action / switch) if switch else (action < 0).to(x.dtype)
    by_switch = -on * (1 - on) / switch if switch else torch.zeros_like(on)
    acting = on * share
    T, corners = len(x), across.shape[1]
    felt = x.new_zeros(T, corners, 2)
    by_a = x.new_zeros(T, len(across), corners, 2)
    by_q, by_w = x.new_zeros(T, corners, 2, corners, 2), x.new_zeros(T, corners, 2, corners, 2)
    for end, ids in ((0, first), (1, second)):
        v = w[..., ids, :].flatten(1, 2)[:, felt_by]
        at = (across if end else -across).clamp_min(0)
        speed = (v * normal).sum(-1).clamp_min(0)
        bend = 1 + (speed / inputs.usual_speed).square()
        resisted, slope = speed.square() / bend, 2 * speed / bend.square()
        felt = felt - torch.einsum("pc,tpx->tcx", at, (acting * resisted)[..., None] * normal)
        more = -(by_switch * share * resisted)[..., None] * normal
        by_a = by_a + at[:, :, None] * more[:, :, None, :]
        eye = torch.eye(2, dtype=x.dtype)
        by_normal = slope[..., None, None] * _outer(normal, v) + resisted[..., None, None] * eye
        by_place = -acting[..., None, None] * by_normal @ by_side
        by_v = -(acting * slope)[..., None, None] * _outer(normal, normal)
        by_q = by_q + torch.einsum("pij,tpxy->tixjy", at[:, :, None] * across[:, None, :], by_place)
        by_w = by_w + torch.einsum("pij,tpxy->tixjy", at[:, :, None] * at[:, None, :], by_v)
    size = 2 * corners
    return _Ends(
        felt,
        by_q.reshape(T, size, size),
        by_w.reshape(T, size, size),
        torch.einsum("tpc,pk->tck", by_a.flatten(2), of_node),
    )


def _direction(D: Float[Tensor, "*b 2"]) -> tuple[Tensor, Tensor, Tensor]:
    """Length, unit vector u, and du/dD."""
    length = (D.square().sum(-1) + 1e-8).sqrt()
    u = D / length[..., None]
    return length, u, (torch.eye(2, dtype=D.dtype) - _outer(u, u)) / length[..., None, None]


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _assemble(outer: Tensor, blocks: Float[Tensor, "steps pairs 2 2"], corners: int) -> Float[Tensor, "steps i2 j2"]:
    """sum_p D_p' block_p D_p over all corners."""
    T = len(blocks)
    summed = outer.T @ blocks.permute(1, 0, 2, 3).reshape(len(outer), -1)
    by = summed.reshape(corners, corners, T, 2, 2).permute(2, 0, 3, 1, 4)
    return by.reshape(T, 2 * corners, 2 * corners)
