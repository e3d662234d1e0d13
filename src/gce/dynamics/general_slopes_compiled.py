"""Slopes of the general method's network, compiled: the way back through a step for all targets of all nodes.

A target of node i is felt only as far as messages came: at each layer the pairs (node, i) that matter are known
(`general.Reach`), and a row stands for one of them and one target of i. After the linear system all nodes matter.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import numpy as np

from gce.dynamics.compiled import kernel
from gce.dynamics.general_compiled import moved, rollout, there
from gce.dynamics.message_compiled import take

ROWS = 8


@kernel
def times(rows, slope, places, m):
    """Each block of m rows times the slope at its place."""
    for p in range(len(places)):
        s = slope[places[p]]
        for q in range(m):
            a = rows[p * m + q]
            for j in range(len(s)):
                a[j] *= s[j]


@kernel
def gathered(out, rows, to, m):
    """Blocks of m rows added to those that they belong to."""
    size = m * rows.shape[1]
    flat, sums = rows.reshape(-1), out.reshape(-1)
    for p in range(len(to)):
        a, b = sums[to[p] * size : to[p] * size + size], flat[p * size : p * size + size]
        for j in range(size):
            a[j] += b[j]


@kernel
def back_solved(W, LU, by):
    """In place, by [nodes, cotangents, channels], by the transposed system."""
    N, K, k = by.shape
    for i in range(N):
        for p in range(i):
            if W.filled[p, i]:
                for s in range(K):
                    for j in range(k):
                        by[i, s, j] -= LU[p, i, j] * by[p, s, j]
        for s in range(K):
            for j in range(k):
                by[i, s, j] /= LU[i, i, j]
    for last in range(N):
        i = N - 1 - last
        for p in range(i + 1, N):
            if W.filled[p, i]:
                for s in range(K):
                    for j in range(k):
                        by[i, s, j] -= LU[p, i, j] * by[p, s, j]


@kernel
def heard_back(W, r, slope, edges, of, receiver, sender, m, word, room, g, wider, by_edge):
    """From what is said in a layer (word, rows of the reach's edges) to edges' inputs, to receivers (added to g) and
    to senders (wider)."""
    here, sent, back = room[0, : len(g)], room[1, : len(wider)], room[2, : len(g)]
    times(word, slope, edges, m)
    told = np.dot(word, W.edge[r].T)
    gathered(by_edge, told, of, m)
    here[:] = 0
    sent[:] = 0
    gathered(here, word, receiver, m)
    gathered(sent, word, sender, m)
    np.dot(here, W.receiver[r].T, back)
    g += back
    np.dot(sent, W.sender[r].T, wider)


@kernel
def slopes(W, reach, states, inputs, buffer, A, B):
    """A [M, nodes, c, nodes, c], B [M, nodes, c, nodes, a] at normalised states [M, nodes, c] under inputs."""
    M, N, c = states.shape
    a, d, m, w, E = inputs.shape[2], len(W.step), W.decode2.shape[1], W.encode2.shape[0], len(W.senders)
    C, R, k, K, seen = c + a, len(W.after), W.right.shape[1], N * m, W.history * d
    P, Q = W.encode1.shape[0], W.edge.shape[1]
    z, at = take(buffer, 0, ROWS * N, C)
    by_edge, at = take(buffer, at, E * K, Q)
    by_z, at = take(buffer, at, K * N, C)
    by_own, at = take(buffer, at, N * K, P)
    by_u, at = take(buffer, at, N * K, k)
    by_w, at = take(buffer, at, E * K, k)
    g_room, at = take(buffer, at, N * K, w)
    x_room, at = take(buffer, at, N * K, w)
    flat, at = take(buffer, at, 3 * N * K, w)
    room = flat.reshape(3, N * K, w)
    word_room, at = take(buffer, at, E * K, w)
    answer_room, at = take(buffer, at, E * K, w)
    new, by_move = np.empty(d, np.float32), np.empty((d, d + m), np.float32)
    A[:] = 0
    B[:] = 0
    for first in range(0, M, ROWS):
        many = min(ROWS, M - first)
        for b in range(many):
            for i in range(N):
                for j in range(c):
                    v = states[first + b, i, j]
                    z[b * N + i, j] = v * W.scale[j % d] + W.offset[j % d] if j < seen else v
                for j in range(a):
                    z[b * N + i, c + j] = inputs[first + b, i, j]
        y, kept, _ = there(W, z[: many * N], buffer[at:])
        said_slope, answer_slope, node_slope, encode_slope, decode_slope, weights, u, LU = kept
        for b in range(many):
            by_edge[:] = 0
            pairs, level = reach.node[: reach.level[1]], 0
            g, x = g_room[: len(pairs) * m], x_room[: len(pairs) * m]
            for p in range(len(pairs)):
                for q in range(m):
                    x[p * m + q] = W.decode2[:, q]
            times(x, decode_slope[b * N : b * N + N], pairs, m)
            np.dot(x, W.decode1.T, g)
            for step in range(R):
                r = R - 1 - step
                x, into = x_room[: len(g)], room[0, : len(g)]
                np.dot(g, W.update2[r].T, x)
                times(x, node_slope[(r * many + b) * N : (r * many + b + 1) * N], pairs, m)
                np.dot(x, W.update_own[r].T, into)
                g += into
                np.dot(x, W.update_heard[r].T, into)
                here = slice(reach.edges[step], reach.edges[step + 1])
                on, receiver = reach.on[here], reach.receiver[here]
                answer, word = answer_room[: len(on) * m], word_room[: len(on) * m]
                for p in range(len(on)):
                    answer[p * m : p * m + m] = into[receiver[p] * m : receiver[p] * m + m]
                times(answer, answer_slope[(r * many + b) * E : (r * many + b + 1) * E], on, m)
                np.dot(answer, W.after[r].T, word)
                up = reach.up[reach.level[level] : reach.level[level + 1]]
                level += 1
                pairs = reach.node[reach.level[level] : reach.level[level + 1]]
                wider = x_room[: len(pairs) * m]
                slope = said_slope[(r * many + b) * E : (r * many + b + 1) * E]
                heard_back(
                    W, r, slope, on, reach.of[here], receiver, reach.sender[here], m, word, room, g, wider, by_edge
                )
                gathered(wider, g, up, m)
                g = g_room[: len(wider)]
                g[:] = wider
                if k and r == R // 2:
                    x, back = x_room[: len(g)], room[0, : len(g)]
                    np.dot(g, W.back2.T, x)
                    times(x, node_slope[(R * many + b) * N : (R * many + b + 1) * N], pairs, m)
                    np.dot(x, W.back_own.T, back)
                    g += back
                    up, felt = reach.up[reach.level[level] : reach.level[level + 1]], np.dot(x, W.back_into.T)
                    level += 1
                    pairs = reach.node[reach.level[level] : reach.level[level + 1]]
                    by_u[:] = 0
                    gathered(by_u, felt, up, m)
                    x_room[:] = 0
                    gathered(x_room, g, up, m)
                    whole_back(W, LU[b * N * N : (b + 1) * N * N].reshape(N, N, k), weights[b * E : b * E + E],
                               u[b * N : b * N + N], by_u, by_w)  # fmt: skip
                    np.dot(by_u, W.right.T, g_room)
                    g = g_room
                    g += x_room
                    np.dot(by_w, W.weight.T, word_room)
                    slope = said_slope[(R * many + b) * E : (R * many + b + 1) * E]
                    heard_back(W, R, slope, reach.every, reach.every, W.receivers, W.senders, K, word_room, room, g,
                               x_room, by_edge)  # fmt: skip
                    g += x_room
            x, own = x_room[: len(g)], by_own[: len(g)]
            np.dot(g, W.encode2.T, x)
            times(x, encode_slope[b * N : b * N + N], pairs, m)
            np.dot(x, W.encode1.T, own)
            seeds = reach.seed[reach.level[level] : reach.level[level + 1]]
            by_inputs(W, z[b * N : b * N + N], pairs, seeds, own, by_edge, by_z.reshape(K, N, C))
            for i in range(N):
                moved(W, z[b * N + i], y[b * N + i], new, by_move)
                for o in range(d):
                    for q in range(m):
                        share = by_move[o, d + q] / W.scale[o]
                        if share != 0:
                            for j in range(N):
                                row = by_z[(i * m + q) * N + j]
                                for v in range(seen):
                                    A[first + b, i, o, j, v] += share * row[v] * W.scale[v % d]
                                for v in range(seen, c):
                                    A[first + b, i, o, j, v] += share * row[v]
                                for v in range(a):
                                    B[first + b, i, o, j, v] += share * row[c + v]
                    for v in range(d):
                        A[first + b, i, o, i, v] += by_move[o, v] / W.scale[o] * W.scale[v]
                for v in range(d, seen):
                    A[first + b, i, v, i, v - d] = 1
                for v in range(c - seen):
                    B[first + b, i, seen + v, i, v] = 1


@kernel
def whole_back(W, LU, weights, u, by_u, by_w):
    """Through the linear system: by_u [rows of nodes, channels] becomes what its right side is, by_w its weights'."""
    N, k = u.shape
    K = len(by_u) // N
    back_solved(W, LU, by_u.reshape(N, K, k))
    for n in range(len(W.senders)):
        s, r = W.senders[n], W.receivers[n]
        for i in range(K):
            of, out = by_u[r * K + i], by_w[n * K + i]
            for j in range(k):
                sign = np.float32(1) if weights[n, j] > 0 else np.float32(-1)
                out[j] = of[j] * (u[s, j] - sign * u[r, j])


@kernel
def turned_back(pairs, c, s, v, by):
    """Of `turned_in`: by becomes what it is by the vector v; by the frame."""
    by_c, by_s = np.float32(0), np.float32(0)
    for p in range(len(pairs)):
        i, j = pairs[p, 0], pairs[p, 1]
        by_c += by[i] * v[i] + by[j] * v[j]
        by_s += by[i] * v[j] - by[j] * v[i]
        by[i], by[j] = c * by[i] - s * by[j], s * by[i] + c * by[j]
    return by_c, by_s


@kernel
def by_inputs(W, z, pairs, seeds, own, by_edge, by_z):
    """From what enters the network (own, by_edge) to by_z [targets, nodes, C]."""
    N, C, d, m, framed = len(z), z.shape[1], len(W.step), W.decode2.shape[1], len(W.frame) > 0
    n_kept, n_plain, K = len(W.kept), len(W.plain), N * m
    by, v, c, s = np.empty(d, np.float32), np.empty(d, np.float32), np.float32(1), np.float32(0)
    by_z[:] = 0
    for p in range(len(pairs)):
        x = z[pairs[p]]
        if framed:
            c, s = x[W.frame[0]], x[W.frame[1]]
        for q in range(m):
            row, out = own[p * m + q], by_z[seeds[p] * m + q, pairs[p]]
            for j in range(n_plain):
                out[W.plain[j]] += row[n_kept + j]
            for lag in range(1 + (n_kept + n_plain < len(row))):
                for j in range(d):
                    by[j] = row[n_kept + n_plain + j] if lag else np.float32(0)
                    v[j] = (x[j] - x[d + j]) / W.step[j] if lag else x[j]
                if not lag:
                    for j in range(n_kept):
                        by[W.kept[j]] = row[j]
                by_c, by_s = turned_back(W.seen, c, s, v, by)
                for j in range(d):
                    if lag:
                        out[j] += by[j] / W.step[j]
                        out[d + j] -= by[j] / W.step[j]
                    else:
                        out[j] += by[j]
                if framed:
                    out[W.frame[0]] += by_c
                    out[W.frame[1]] += by_s
    for n in range(len(W.senders)):
        r, f = W.receivers[n], W.senders[n]
        if framed:
            c, s = z[r, W.frame[0]], z[r, W.frame[1]]
        for j in range(d):
            v[j] = z[f, j] - z[r, j]
        for k in range(K):
            row, to, from_ = by_edge[n * K + k], by_z[k, r], by_z[k, f]
            for j in range(d):
                by[j] = row[j] * W.edge_unit[n, j]
            by_c, by_s = turned_back(W.seen, c, s, v, by)
            for j in range(d):
                from_[j] += by[j]
                to[j] -= by[j]
            if framed:
                to[W.frame[0]] += by_c
                to[W.frame[1]] += by_s
            for j in range(len(W.edge_acts)):
                column = W.edge_acts[j, n]
                if column >= 0:
                    by_z[k, f if j else r, column] += row[d + j]
    if len(W.dense):
        for i in range(N):
            for p in range(W.dense.shape[1] - 1):
                j = W.near[i, p // C]
                if j < N:
                    for q in range(m):
                        by_z[i * m + q, j, p % C] += W.dense[i, p, q]


def warm() -> None:
    """Compile, unless that was done before: types matter, numbers and sizes do not."""
    from gce.dynamics.general_weights import Reach, Weights, needed

    whole, sizes = Weights._fields.index("edge_unit"), {"encode1": (2, 1), "dense": (1, 0, 1), "frame": (0,)}
    sizes |= {name: (0, 2) for name in ("seen", "out", "round")} | {"edge_acts": (0, 1)}
    sizes |= {name: (2, 1, 1) for name in ("edge_const", "edge", "receiver", "sender")}
    sizes |= dict.fromkeys(("after", "update_own", "update_heard", "update2"), (1, 1, 1))
    single = {"senders", "receivers", "kept", "plain", "free", "turning", "step", "scale", "offset"}
    single |= {name for name in Weights._fields if name.endswith("bias")} - {
        "after_bias",
        "update_bias",
        "update2_bias",
    }
    single -= {"encode1_bias"}
    arrays: list[Any] = [
        np.zeros(sizes.get(name, (1,) if name in single else (1, 1)), np.int64 if k < whole else np.float32)
        + (k >= whole)
        for k, name in enumerate(Weights._fields[:-1])
    ]
    arrays = [array.astype(np.int64 if k < whole else np.float32) for k, array in enumerate(arrays)] + [1]
    W = Weights(*arrays)
    x, room = np.zeros((1, 1, 1), np.float32), np.empty(needed(W, ROWS, True), np.float32)
    rollout(W, x, x[None], room, np.zeros((1, 1, 1, 1)))
    slopes(W, Reach.of_rounds(W), x, x, room, np.zeros((1, 1, 1, 1, 1)), np.zeros((1, 1, 1, 1, 1)))
