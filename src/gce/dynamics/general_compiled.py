"""Rollouts of the general method's network, compiled (extra `fast`); `general.Weights` says what arrays it takes.

Of rows z, the state in the units of motion and the inputs of every node of every state of a batch, nodes within states.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from gce.dynamics.compiled import kernel
from gce.dynamics.message_compiled import silu, take

FARTHEST = 1e4
LARGEST_TURN = 3.0
LARGEST_TARGET = 30.0


@kernel
def plus(rows, bias):
    for i in range(len(rows)):
        a = rows[i]
        for j in range(len(bias)):
            a[j] += bias[j]


@kernel
def bent(rows, bias, slope):
    """silu(rows + bias), in place, and its slope."""
    plus(rows, bias)
    silu(rows.reshape(rows.size), slope.reshape(rows.size))


@kernel
def turned_in(pairs, c, s, v):
    """Pairs of a vector as seen from a frame."""
    for p in range(len(pairs)):
        i, j = pairs[p, 0], pairs[p, 1]
        v[i], v[j] = c * v[i] + s * v[j], c * v[j] - s * v[i]


@kernel
def words(W, r, seen, h, here, sent, said, slope):
    """What edges say in a layer: the linear parts of inputs and of both ends, bent."""
    w, E, N = W.encode2.shape[0], len(W.senders), len(W.encode1_bias)
    np.dot(seen, W.edge[r], said)
    np.dot(h, W.receiver[r], here)
    np.dot(h, W.sender[r], sent)
    for b in range(len(h) // N):
        for n in range(E):
            out, known = said[b * E + n], W.edge_const[r, n]
            x, y = here[b * N + W.receivers[n]], sent[b * N + W.senders[n]]
            for j in range(w):
                out[j] += known[j] + x[j] + y[j]
    silu(said.reshape(said.size), slope.reshape(said.size))


@kernel
def factors(W, weights, LU):
    """LU [channels last, nodes, nodes] of the linear system of one state, without pivots: its diagonal is dominant."""
    N, k = len(LU), LU.shape[2]
    LU[:] = 0
    for i in range(N):
        LU[i, i] = 1
    for n in range(len(W.senders)):
        s, r = W.senders[n], W.receivers[n]
        for j in range(k):
            LU[r, s, j] -= weights[n, j]
            LU[r, r, j] += abs(weights[n, j])
    for p in range(N):
        for i in range(p + 1, N):
            if W.filled[i, p]:
                for j in range(k):
                    LU[i, p, j] /= LU[p, p, j]
                for q in range(p + 1, N):
                    if W.filled[p, q]:
                        for j in range(k):
                            LU[i, q, j] -= LU[i, p, j] * LU[p, q, j]


@kernel
def solved(W, LU, u):
    """In place, u [nodes, channels]."""
    N, k = u.shape
    for i in range(N):
        for p in range(i):
            if W.filled[i, p]:
                for j in range(k):
                    u[i, j] -= LU[i, p, j] * u[p, j]
    for back in range(N):
        i = N - 1 - back
        for p in range(i + 1, N):
            if W.filled[i, p]:
                for j in range(k):
                    u[i, j] -= LU[i, p, j] * u[p, j]
        for j in range(k):
            u[i, j] /= LU[i, i, j]


@kernel
def there(W, z, buffer):
    """(y [rows, m], what the way back needs, how much of the buffer is used) of rows z [states * nodes, C]."""
    N, E, w, C = len(W.encode1_bias), len(W.senders), W.encode2.shape[0], z.shape[1]
    B, d, R, k = len(z) // N, len(W.step), len(W.after), W.right.shape[1]
    P, Q, m, acts = W.encode1.shape[0], W.edge.shape[1], W.decode2.shape[1], len(W.edge_acts)
    own, at = take(buffer, 0, B * N, P)
    seen, at = take(buffer, at, B * E, Q)
    h, at = take(buffer, at, B * N, w)
    encode_slope, at = take(buffer, at, B * N, w)
    said, at = take(buffer, at, B * E, w)
    answer, at = take(buffer, at, B * E, w)
    said_slope, at = take(buffer, at, (R + 1) * B * E, w)
    answer_slope, at = take(buffer, at, R * B * E, w)
    node_slope, at = take(buffer, at, (R + 1) * B * N, w)
    decode_slope, at = take(buffer, at, B * N, w)
    into, at = take(buffer, at, B * N, w)
    one, at = take(buffer, at, B * N, w)
    two, at = take(buffer, at, B * N, w)
    weights, at = take(buffer, at, B * E, k)
    u, at = take(buffer, at, B * N, k)
    LU, at = take(buffer, at, B * N * N, k)
    y, at = take(buffer, at, B * N, m)
    place = np.empty(d, np.float32)
    c, s = np.float32(1), np.float32(0)

    for b in range(B):
        for i in range(N):
            x, out = z[b * N + i], own[b * N + i]
            if len(W.frame):
                c, s = x[W.frame[0]], x[W.frame[1]]
            for j in range(d):
                place[j] = x[j]
            turned_in(W.seen, c, s, place)
            n = len(W.kept)
            for j in range(n):
                out[j] = place[W.kept[j]]
            for j in range(len(W.plain)):
                out[n + j] = x[W.plain[j]]
            n += len(W.plain)
            if n < P:
                for j in range(d):
                    place[j] = (x[j] - x[d + j]) / W.step[j]
                turned_in(W.seen, c, s, place)
                for j in range(d):
                    out[n + j] = place[j]
        for n in range(E):
            from_, to, out = z[b * N + W.senders[n]], z[b * N + W.receivers[n]], seen[b * E + n]
            if len(W.frame):
                c, s = to[W.frame[0]], to[W.frame[1]]
            for j in range(d):
                place[j] = from_[j] - to[j]
            turned_in(W.seen, c, s, place)
            for j in range(d):
                out[j] = place[j] * W.edge_unit[n, j]
            for j in range(acts):
                column = W.edge_acts[j, n]
                end = W.senders[n] if j else W.receivers[n]
                out[d + j] = z[b * N + end, column] if column >= 0 else np.float32(0)
    np.dot(own, W.encode1, one)
    for b in range(B):
        for i in range(N):
            for j in range(w):
                one[b * N + i, j] += W.encode1_bias[i, j]
    silu(one.reshape(one.size), encode_slope.reshape(one.size))
    np.dot(one, W.encode2, h)
    plus(h, W.encode2_bias)
    for r in range(R):
        if k and r == R // 2:
            words(W, R, seen, h, one, two, said, said_slope[R * B * E : (R + 1) * B * E])
            np.dot(said, W.weight, weights)
            plus(weights, W.weight_bias)
            np.dot(h, W.right, u)
            plus(u, W.right_bias)
            for b in range(B):
                of_state = LU[b * N * N : (b + 1) * N * N].reshape(N, N, k)
                factors(W, weights[b * E : (b + 1) * E], of_state)
                solved(W, of_state, u[b * N : (b + 1) * N])
            np.dot(h, W.back_own, one)
            np.dot(u, W.back_into, two)
            one += two
            bent(one, W.back_bias, node_slope[R * B * N : (R + 1) * B * N])
            np.dot(one, W.back2, two)
            plus(two, W.back2_bias)
            h += two
        words(W, r, seen, h, one, two, said, said_slope[r * B * E : (r + 1) * B * E])
        np.dot(said, W.after[r], answer)
        bent(answer, W.after_bias[r], answer_slope[r * B * E : (r + 1) * B * E])
        into[:] = 0
        for b in range(B):
            for n in range(E):
                a, v = into[b * N + W.receivers[n]], answer[b * E + n]
                for j in range(w):
                    a[j] += v[j]
        np.dot(h, W.update_own[r], one)
        np.dot(into, W.update_heard[r], two)
        one += two
        bent(one, W.update_bias[r], node_slope[r * B * N : (r + 1) * B * N])
        np.dot(one, W.update2[r], two)
        plus(two, W.update2_bias[r])
        h += two
    np.dot(h, W.decode1, one)
    bent(one, W.decode1_bias, decode_slope)
    np.dot(one, W.decode2, y)
    plus(y, W.decode2_bias)
    for b in range(B):
        for i in range(N):
            for p in range(W.dense.shape[1]):
                v = np.float32(1)
                if p < W.dense.shape[1] - 1:
                    j = W.near[i, p // C]
                    v = z[b * N + j, p % C] if j < N else np.float32(0)
                for j in range(m):
                    y[b * N + i, j] += v * W.dense[i, p, j]
    return y, (said_slope, answer_slope, node_slope, encode_slope, decode_slope, weights, u, LU), at


@kernel
def moved(W, x, y, new, by):
    """How a node moves: its next observation [d], and by what it was and by its targets [d, d + m], where asked for."""
    d, m, slopes = len(W.step), len(W.free), len(by) > 0
    rise, turn = np.zeros(d, np.float32), np.zeros(d, np.float32)
    by_turn = np.zeros(by.shape, np.float32)
    top, far, zero = np.float32(LARGEST_TARGET), np.float32(LARGEST_TURN), np.float32(0)
    if slopes:
        by[:] = 0
        for j in range(d):
            by[j, j] = 1
    for q in range(m):
        v = min(max(y[q], -top), top)
        rise[W.free[q]] = v * W.step[W.free[q]]
        if slopes and v == y[q]:
            by[W.free[q], d + q] = W.step[W.free[q]]
    if len(W.frame):
        fi, fj = W.frame[0], W.frame[1]
        c, s = x[fi], x[fj]
        for p in range(len(W.out)):
            i, j = W.out[p, 0], W.out[p, 1]
            if slopes:
                for q in range(d, d + m):
                    by[i, q], by[j, q] = c * by[i, q] - s * by[j, q], c * by[j, q] + s * by[i, q]
                by[i, fi] += rise[i]
                by[i, fj] -= rise[j]
                by[j, fi] += rise[j]
                by[j, fj] += rise[i]
            rise[i], rise[j] = c * rise[i] - s * rise[j], c * rise[j] + s * rise[i]
    for j in range(d):
        new[j] = x[j] + rise[j]
    for k in range(d):
        if W.turning[k] != 0:
            for v in range(d):
                half, late = W.rates[v, k] / 2, W.late_rates[v, k]
                if half != 0 or late != 0:
                    turn[k] += half * (x[v] + new[v]) + late * new[v]
                    if slopes:
                        by_turn[k, v] += half
                        for q in range(d + m):
                            by_turn[k, q] += (half + late) * by[v, q]
    for k in range(d):
        if W.turning[k] == 1:  # a position
            new[k] += turn[k]
            if slopes:
                for q in range(d + m):
                    by[k, q] += by_turn[k, q]
        elif W.turning[k] == 2:  # a part of an angle
            v = min(max(turn[k], -far), far)
            if v != turn[k] and slopes:
                by_turn[k] = zero
            turn[k] = v
    for p in range(len(W.round)):
        i, j = W.round[p, 0], W.round[p, 1]
        ti = turn[i] if W.turning[i] == 2 else zero
        tj = turn[j] if W.turning[j] == 2 else zero
        ci, si, cj, sj, a, b = np.cos(ti), np.sin(ti), np.cos(tj), np.sin(tj), new[i], new[j]
        new[i], new[j] = a * ci - b * si, b * cj + a * sj
        if slopes:
            turning = W.turning[i] == 2
            for q in range(d + m):
                one, two, ri, rj = by[i, q], by[j, q], zero, zero
                if turning:
                    ri, rj = by_turn[i, q], by_turn[j, q]
                by[i, q] = one * ci - two * si - (a * si + b * ci) * ri
                by[j, q] = two * cj + one * sj - (b * sj - a * cj) * rj
        a, b = new[i], new[j]
        square = max(a * a + b * b, np.float32(1e-6))
        short = np.float32(1) / np.sqrt(square)
        new[i], new[j] = a * short, b * short
        if slopes:
            for q in range(d + m):
                one, two = by[i, q], by[j, q]
                along = (a * one + b * two) / square if square > np.float32(1e-6) else zero
                by[i, q], by[j, q] = (one - a * along) * short, (two - b * along) * short


@kernel
def rollout(W, x, inputs, buffer, found):
    """Normalised states after each step [batch, M, nodes, c] from x [batch, nodes, c], inputs [batch, M, nodes, a]."""
    batch, M, N, c = found.shape
    d, a = len(W.step), inputs.shape[3]
    z, at = take(buffer, 0, batch * N, c + a)
    far, none = np.float32(FARTHEST), np.empty((0, 0), np.float32)
    new = np.empty(d, np.float32)
    seen = W.history * d
    for b in range(batch):
        for i in range(N):
            for j in range(c):
                z[b * N + i, j] = x[b, i, j] * W.scale[j % d] + W.offset[j % d] if j < seen else x[b, i, j]
    for t in range(M):
        for b in range(batch):
            for i in range(N):
                for j in range(a):
                    z[b * N + i, c + j] = inputs[b, t, i, j]
        y, _, _ = there(W, z, buffer[at:])
        for b in range(batch):
            for i in range(N):
                row = z[b * N + i]
                moved(W, row, y[b * N + i], new, none)
                if W.history == 2:
                    for j in range(d):
                        row[d + j] = row[j]
                for j in range(d):
                    row[j] = min(max(new[j], -far), far)
                for j in range(c - seen):
                    row[seen + j] = row[c + j]
                for j in range(c):
                    v = row[j]
                    found[b, t, i, j] = (v - W.offset[j % d]) / W.scale[j % d] if j < seen else v
