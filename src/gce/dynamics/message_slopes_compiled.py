"""Slopes of `message_kernel`, compiled: the way back through a step for all targets, one state after another."""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from gce.dynamics.compiled import kernel
from gce.dynamics.message_compiled import rollout, take, there


@kernel
def add(total, part):
    for i in range(len(total)):
        a, b = total[i], part[i]
        for j in range(len(a)):
            a[j] += b[j]


@kernel
def add_blocks(blocks, ends, K, total):
    """Blocks of K rows of every edge, added to those of a node at its end."""
    size = K * blocks.shape[1]
    flat, sums = blocks.reshape(-1), total.reshape(-1)
    for n in range(len(ends)):
        a, b = sums[ends[n] * size : ends[n] * size + size], flat[n * size : n * size + size]
        for j in range(size):
            a[j] += b[j]


@kernel
def slopes(W, states, node, target, buffer, found):
    """d y [M, targets, nodes, c] at states [M, nodes, c] of the targets (node, target), by the state."""
    M, N, c = states.shape
    E, w, R, e = len(W.senders), W.heard.shape[1], len(W.heard), W.message.shape[1]
    rounds, kin, f, m = len(W.message), W.told.shape[0], W.own_mean.shape[0], W.own_mean.shape[1] // 2
    fb, lin, K, first = W.output.shape[1], W.to_linear.shape[2], len(node), len(W.chosen)
    places = E if W.conservative else N
    for t in range(M):
        _, kept, at = there(W, states[t], buffer)
        said_slope, hidden_slope, bounded_slope, both, alpha, between, geometry = kept
        by_both, at = take(buffer, at, N * K, 2 * m)
        by_features, at = take(buffer, at, N * K, f)
        by_score, at = take(buffer, at, E, 1)
        by_said, at = take(buffer, at, places * K, fb)
        by_before, at = take(buffer, at, E * K, e)
        by_seen, at = take(buffer, at, E * K, kin)
        heard_there, at = take(buffer, at, N * K, e)
        heard_here, at = take(buffer, at, N * K, e)
        by_update, at = take(buffer, at, N * K, w)
        by_hidden, at = take(buffer, at, N * K, w)
        back, at = take(buffer, at, N * K, w)
        by_into, at = take(buffer, at, N * K, e)
        more, at = take(buffer, at, E * K, kin)
        by_x = found[t]
        by_x[:] = 0
        by_both[:] = 0
        for k in range(K):
            i = node[k]
            by_both[i * K + k, target[k]] = 1
            for n in range(E):
                if W.receivers[n] == i:
                    by_both[W.senders[n] * K + k, m + target[k]] += alpha[0, n]
        np.dot(by_both, W.own_mean_back, by_features)
        if W.concentration > 1e-30:
            twice = np.float32(2 * W.concentration)
            for k in range(K):
                i, mean = node[k], np.float32(0)
                for n in range(E):
                    if W.receivers[n] == i:
                        by_score[n, 0] = both[W.senders[n], m + target[k]]
                        mean += alpha[0, n] * by_score[n, 0]
                for n in range(E):
                    if W.receivers[n] == i:
                        v = (by_score[n, 0] - mean) * alpha[0, n] * twice
                        a, b = by_features[i * K + k, first:], by_features[W.senders[n] * K + k, first:]
                        for j in range(fb + lin):
                            a[j] += v * between[n, j]
                            b[j] -= v * between[n, j]
        if W.conservative:
            for n in range(E):
                slope = bounded_slope[n]
                for k in range(K):
                    a = by_features[W.receivers[n] * K + k, first : first + fb]
                    b = by_features[W.senders[n] * K + k, first : first + fb]
                    out = by_said[n * K + k]
                    for j in range(fb):
                        out[j] = (a[j] - b[j]) * slope[j]
            np.dot(by_said, W.output_back, by_before)
        else:
            for i in range(N):
                for k in range(K):
                    for j in range(fb):
                        by_said[i * K + k, j] = by_features[i * K + k, first + j] * bounded_slope[i, j]
            np.dot(by_said, W.output_back, by_hidden)
        for step in range(R):
            r = R - 1 - step
            if r < rounds:
                for i in range(N):
                    slope = hidden_slope[r, i * w : i * w + w]
                    for k in range(K):
                        a, out = by_hidden[i * K + k], by_update[i * K + k]
                        for j in range(w):
                            out[j] = a[j] * slope[j]
                np.dot(by_update, W.message_back[r], by_into)
            heard_here[:] = 0
            heard_there[:] = 0
            for n in range(E):
                slope = said_slope[r, n * e : n * e + e]
                for k in range(K):
                    out = by_before[n * K + k]
                    a = out if r == rounds else by_into[W.receivers[n] * K + k]
                    for j in range(e):
                        out[j] = a[j] * slope[j]
            add_blocks(by_before, W.receivers, K, heard_here)
            add_blocks(by_before, W.senders, K, heard_there)
            np.dot(by_before, W.told_back[r * e : r * e + e], more if step else by_seen)
            if step:
                for i in range(E * K):
                    for j in range(kin):
                        by_seen[i, j] += more[i, j]
            np.dot(heard_here, W.heard_back[r, :e], back)
            if r == 0 or r == rounds:
                by_hidden[:] = back
            else:
                add(by_hidden, back)
            np.dot(heard_there, W.heard_back[r, e : 2 * e], back)
            add(by_hidden, back)
            if r < rounds:
                np.dot(by_update, W.heard_back[r, 2 * e :], back)
                add(by_hidden, back)
        width = kin + len(W.moving)
        lines = np.empty(width, np.float32)
        for n in range(E):
            a, b = W.receivers[n], W.senders[n]
            for k in range(K):
                p = n * K + k
                lines[:] = 0
                for j in range(lin):
                    by = by_features[a * K + k, first + fb + j]
                    if W.conservative:
                        by -= by_features[b * K + k, first + fb + j]
                    row = W.to_linear_back[n, j]
                    for q in range(width):
                        lines[q] += by * row[q]
                for q in range(kin):
                    by_seen[p, q] += lines[q]
                for q in range(len(W.moving)):
                    by_x[k, b, W.moving[q]] += lines[kin + q]
                if len(W.columns):
                    length, ux, uy, wx = geometry[n, 0], geometry[n, 1], geometry[n, 2], geometry[n, 3]
                    wy, stretch, rate = geometry[n, 4], geometry[n, 5], geometry[n, 6]
                    ax, ay, mx, my = by_seen[p, c + 2], by_seen[p, c + 3], by_seen[p, c + 4], by_seen[p, c + 5]
                    by_length = (by_seen[p, c] + ax * ux + ay * uy) / W.edge_units[1, n]
                    by_rate = (by_seen[p, c + 1] + mx * ux + my * uy) / W.edge_units[2, n]
                    by_ux = stretch * ax + rate * mx + by_rate * wx
                    by_uy = stretch * ay + rate * my + by_rate * wy
                    short = np.float32(1) / length
                    along = by_length - (by_ux * ux + by_uy * uy) * short
                    pulled = (by_ux * short + along * ux, by_uy * short + along * uy, by_rate * ux, by_rate * uy)
                    for q in range(4):
                        v = pulled[q] * W.units[q]
                        by_x[k, b, W.columns[q]] += v
                        by_x[k, a, W.columns[q]] -= v
                for q in range(c):
                    v = by_seen[p, q] / W.difference_std[n, q]
                    by_x[k, b, q] += v
                    by_x[k, a, q] -= v
        for i in range(N):
            for k in range(K):
                for q in range(len(W.moving)):
                    by_x[k, i, W.moving[q]] += by_hidden[i * K + k, q]
                for q in range(first):
                    by_x[k, i, W.chosen[q]] += by_features[i * K + k, q]


def warm() -> None:
    """Compile, unless that was done before: types matter, numbers and sizes do not."""
    from gce.dynamics.message import Weights, slopes_of

    one, two, three = (np.ones((1,) * k, np.float32) for k in (1, 2, 3))
    at, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    W = Weights(
        at, at, none, at, np.zeros((1, 0), np.float32), np.zeros((1, 0), np.float32), two, two, none, one,
        np.ones((3, 1), np.float32), two, two, np.ones((1, 1, 3), np.float32), three, two, two, two, one,
        np.ones((1, 2, 1), np.float32), np.ones((2, 2), np.float32), two, np.ones((1, 3, 1), np.float32), three, two,
        np.ones((2, 2), np.float32), np.ones((1, 1, 2), np.float32), 1.0, 0.0, False,
    )  # fmt: skip
    room, x = W.scratch(1), np.zeros((1, 1, 1), np.float32)
    acting, found = np.zeros((1, 1, 1, 0), np.float32), np.zeros((1, 1, 1, 1))
    rollout(W, x, np.zeros((1, 1, 1, 1), np.float32), two, two, two, 1, acting, False, room, found)
    slopes_of(W, x, two, room)
