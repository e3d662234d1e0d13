"""Rollouts of `message_kernel`, compiled (extra `fast`): the same mathematics, one state after another.

Numbers are single precision. `scratch` is room that callers keep: memory that is given back is dear to get again.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from gce.dynamics.compiled import kernel

Array = np.ndarray


@kernel
def tanh_(v):
    """To 3e-7, by a ratio of polynomials that becomes vector instructions."""
    x = np.float32(7.905311) if v > np.float32(7.905311) else v
    x = np.float32(-7.905311) if x < np.float32(-7.905311) else x
    s = x * x
    p = np.float32(-2.76076847742355e-16)
    p = p * s + np.float32(2.00018790482477e-13)
    p = p * s + np.float32(-8.60467152213735e-11)
    p = p * s + np.float32(5.12229709037114e-08)
    p = p * s + np.float32(1.48572235717979e-05)
    p = p * s + np.float32(6.37261928875436e-04)
    p = p * s + np.float32(4.89352455891786e-03)
    q = np.float32(1.19825839466702e-06)
    q = q * s + np.float32(1.18534705686654e-04)
    q = q * s + np.float32(2.26843463243900e-03)
    q = q * s + np.float32(4.89352518554385e-03)
    return x * p / q


@kernel
def silu(x, slope):
    """In place; with its slope."""
    for i in range(len(x)):
        v = x[i]
        g = np.float32(0.5) + np.float32(0.5) * tanh_(np.float32(0.5) * v)
        x[i] = v * g
        slope[i] = g * (np.float32(1) + v * (np.float32(1) - g))


@kernel
def take(buffer, at, rows, columns):
    return buffer[at : at + rows * columns].reshape(rows, columns), at + rows * columns


@kernel
def there(W, x, buffer):
    """(y without inputs, what the way back needs, how much of the buffer is used) of one state [nodes, c]."""
    N, E, c, w = len(W.node_type), len(W.senders), x.shape[1], W.heard.shape[1]
    R, e, rounds, k = len(W.heard), W.message.shape[1], len(W.message), len(W.moving)
    kin, f, m = W.told.shape[0], W.own_mean.shape[0], W.own_mean.shape[1] // 2
    fb, lin = W.output.shape[1], W.to_linear.shape[2]
    seen, at = take(buffer, 0, E, kin)
    told, at = take(buffer, at, E, R * e)
    said, at = take(buffer, at, R, E * e)
    said_slope, at = take(buffer, at, R, E * e)
    hidden, at = take(buffer, at, N, w)
    hidden_slope, at = take(buffer, at, max(rounds, 1), N * w)
    heard, at = take(buffer, at, N, 2 * e + w)
    into, at = take(buffer, at, N, e)
    update, at = take(buffer, at, N, w)
    places = E if W.conservative else N
    before, at = take(buffer, at, places, fb)
    phi, at = take(buffer, at, N, fb + lin)
    features, at = take(buffer, at, N, f)
    both, at = take(buffer, at, N, 2 * m)
    alpha, at = take(buffer, at, 1, E)
    between, at = take(buffer, at, E, fb + lin)
    geometry, at = take(buffer, at, E, 7)
    total, at = take(buffer, at, 1, N)
    y, at = take(buffer, at, N, m)

    for i in range(E):
        s, r = W.senders[i], W.receivers[i]
        for j in range(c):
            seen[i, j] = (x[s, j] - x[r, j] - W.difference_mean[i, j]) / W.difference_std[i, j]
        n = c
        if len(W.columns):
            qx = (x[s, W.columns[0]] - x[r, W.columns[0]]) * W.units[0]
            qy = (x[s, W.columns[1]] - x[r, W.columns[1]]) * W.units[1]
            wx = (x[s, W.columns[2]] - x[r, W.columns[2]]) * W.units[2]
            wy = (x[s, W.columns[3]] - x[r, W.columns[3]]) * W.units[3]
            length = np.sqrt(qx * qx + qy * qy + np.float32(1e-8))
            ux, uy = qx / length, qy / length
            stretch = (length - W.edge_units[0, i]) / W.edge_units[1, i]
            rate = (ux * wx + uy * wy) / W.edge_units[2, i]
            seen[i, c], seen[i, c + 1], seen[i, c + 2] = stretch, rate, stretch * ux
            seen[i, c + 3], seen[i, c + 4], seen[i, c + 5] = stretch * uy, rate * ux, rate * uy
            geometry[i, 0], geometry[i, 1], geometry[i, 2], geometry[i, 3] = length, ux, uy, wx
            geometry[i, 4], geometry[i, 5], geometry[i, 6] = wy, stretch, rate
            n += 6
        for j in range(W.edge_attributes.shape[1]):
            seen[i, n + j] = W.edge_attributes[i, j]
    np.dot(seen, W.told, told)
    hidden[:] = 0
    for i in range(N):
        for j in range(k):
            hidden[i, j] = x[i, W.moving[j]]
        for j in range(W.node_attributes.shape[1]):
            hidden[i, k + j] = W.node_attributes[i, j]
    own = k + W.node_attributes.shape[1]
    # What is linear in an edge's inputs and its sender's.
    phi[:] = 0
    for i in range(E):
        s, r = W.senders[i], W.receivers[i]
        for j in range(lin):
            v = np.float32(0)
            for q in range(kin):
                v += seen[i, q] * W.to_linear[i, q, j]
            for q in range(own):
                v += hidden[s, q] * W.to_linear[i, kin + q, j]
            phi[r, fb + j] += v
            if W.conservative:
                phi[s, fb + j] -= v
    for r in range(R):
        np.dot(hidden, W.heard[r], heard)
        words = said[r].reshape(E, e)
        for i in range(E):
            a, b = W.receivers[i], W.senders[i]
            for j in range(e):
                words[i, j] = told[i, r * e + j] + W.relation[i, r * e + j] + heard[a, j] + heard[b, e + j]
        silu(said[r], said_slope[r])
        if r == rounds:
            break
        into[:] = 0
        for i in range(E):
            a = W.receivers[i]
            for j in range(e):
                into[a, j] += words[i, j]
        np.dot(into, W.message[r], update)
        for i in range(N):
            for j in range(w):
                update[i, j] += heard[i, 2 * e + j] + W.bias[r, j]
                if r == 0:
                    update[i, j] += W.node_type[i, j]
        silu(update.reshape(N * w), hidden_slope[r])
        for i in range(N):
            for j in range(w):
                hidden[i, j] = update[i, j] + hidden[i, j] if r else update[i, j]
    if W.conservative:
        np.dot(said[rounds].reshape(E, e), W.output, before)
    else:
        np.dot(hidden, W.output, before)
    bound = np.float32(W.bound)
    for i in range(places):
        for j in range(fb):
            v = tanh_((before[i, j] + W.output_bias[j]) / bound)
            before[i, j] = np.float32(1) - v * v  # from here on the slope
            if W.conservative:
                phi[W.receivers[i], j] += bound * v
                phi[W.senders[i], j] -= bound * v
            else:
                phi[i, j] = bound * v
    first = len(W.chosen)
    for i in range(N):
        for j in range(first):
            features[i, j] = x[i, W.chosen[j]]
        for j in range(fb + lin):
            features[i, first + j] = phi[i, j]
    np.dot(features, W.own_mean, both)
    total[:] = 0
    for i in range(E):
        s, r, v = W.senders[i], W.receivers[i], np.float32(0)
        for j in range(fb + lin):
            apart = phi[s, j] - phi[r, j]
            between[i, j] = apart
            v += apart * apart
        alpha[0, i] = np.exp(-np.float32(W.concentration) * v)
        total[0, r] += alpha[0, i]
    for i in range(N):
        for j in range(m):
            y[i, j] = both[i, j]
    for i in range(E):
        s, r = W.senders[i], W.receivers[i]
        alpha[0, i] /= total[0, r]
        for j in range(m):
            y[r, j] += alpha[0, i] * both[s, m + j]
    return y, (said_slope, hidden_slope, before, both, alpha, between, geometry), at


@kernel
def rollout(W, x, pushed, keep, spread, moving, history, acting, fresh, buffer, found):
    """States after each step [batch, M, nodes, c] from x [batch, nodes, c]; fresh: the first step only pushes."""
    batch, M, N, m = pushed.shape
    d, width = len(keep), x.shape[2]
    now, after = np.empty((N, width), np.float32), np.empty((N, width), np.float32)
    for b in range(batch):
        now[:] = x[b]
        for t in range(M):
            y, _, _ = there(W, now, buffer)
            for i in range(N):
                for j in range(d):
                    v = np.float32(0)
                    for q in range(d):
                        v += now[i, q] * keep[q, j]
                    for q in range(m):
                        change = pushed[b, t, i, q]
                        if not (fresh and t == 0):
                            change += y[i, q]
                        v += change * moving[i, q] * spread[q, j]
                    after[i, j] = v
                n = d
                if history == 2:
                    for j in range(d):
                        after[i, n + j] = now[i, j]
                    n += d
                for j in range(acting.shape[3]):
                    after[i, n + j] = acting[b, t, i, j]
            now[:] = after
            for i in range(N):
                for j in range(width):
                    found[b, t, i, j] = now[i, j]
