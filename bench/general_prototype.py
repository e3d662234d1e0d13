"""Prototype of a general learner: one operator for all systems, a latent and a shift per system, a dense part per node.

    y_i = V h_i + C' h_i + W_i' z,   h = GNN(x, a, theta),   y: scaled increments of the free coordinates

V is trained for all systems, theta (four numbers a system) by gradient, in training and then on the episodes,
C = (H'H/N + kappa G0)^-1 H'(Y - HV)/N in closed form, also inside the training loop, W by ridge over the k-hop
neighbourhood. kappa and lambda by 40-step rollouts of left-out episodes or segments.
Systems: dicts with observations [E, T+1, n, d], actions [E, T, n, p], edges [2, m], edge_type, node_type.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import nn

KAPPAS = (1e-3, 1e-2, 1e-1, 0.3, 1.0, 10.0, float("inf"))
LAMBDAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, float("inf"))


@dataclass
class Options:
    minutes: float = 1.25
    width: int = 64
    rounds: int = 4
    noise: float = 0.003
    horizons: tuple = ((0.3, 2), (0.6, 5), (1.0, 10))
    loop: bool = True  # closed form in the loop
    turn: bool = False  # random turns of all of a system about the last axis (points only)
    latent: int = 4
    systems: int = 4
    windows: int = 8
    warm: float = 0.6  # share of the training before the closed form enters the loop
    plain: float = 0.25  # share of the systems in a batch that roll out under V alone
    rows: int = 24  # steps per system for the closed form in the loop
    hops: int = 2
    rate: float = 2e-3
    seed: int = 0


def _slope(y, x):
    s = (x * y).sum() / (x * x).sum().clip(1e-12)
    return s, 1 - np.square(y - s * x).sum() / np.square(y).sum().clip(1e-12)


class Structure:
    """Positions with velocities, angles on the circle, frames: from the recordings alone."""

    def __init__(self, systems, opt):
        self.d = d = systems[0]["observations"].shape[-1]
        seen = [s["observations"].astype(float) for s in systems]
        now, nxt = (np.concatenate([o[:, part].reshape(-1, d) for o in seen]) for part in (slice(-1), slice(1, None)))
        step, mid, pairs = nxt - now, (now + nxt) / 2, combinations(range(d), 2)
        self.circles = [(i, j) for i, j in pairs if np.abs(np.hypot(now[:, i], now[:, j]) - 1).max() < 1e-3]
        angles = {c for pair in self.circles for c in pair}
        self.moves, self.turns = [], []  # (position, velocity, dt), (cos, sin, rate, dt)
        for p in sorted(set(range(d)) - angles):
            r2, s, v = max((*_slope(step[:, p], mid[:, v])[::-1], v) for v in range(d) if v not in {p, *angles})
            if r2 > 0.95 and s > 0:
                self.moves.append((p, v, float(s)))
        for i, j in self.circles:
            turn = np.angle((nxt[:, i] + 1j * nxt[:, j]) * (now[:, i] - 1j * now[:, j]))
            r2, s, w = max((*_slope(turn, mid[:, w])[::-1], w) for w in range(d) if w not in (i, j))
            if r2 > 0.95:
                self.turns.append((i, j, w, float(s)))
        bound = {m[0] for m in self.moves} | {c for t in self.turns for c in t[:2]}
        self.free = [c for c in range(d) if c not in bound]
        # vectors that turn with a circle: the first two positions and their velocities
        self.framed = bool(self.turns and len(self.moves) >= 2)
        std, unit = now.std(0), step.std(0)
        self.pairs = list(zip(*(m[:2] for m in self.moves[:2]), strict=True)) if len(self.moves) >= 2 else []
        for i, j in self.pairs if self.framed or opt.turn else []:
            std[[i, j]], unit[[i, j]] = np.sqrt(np.mean(std[[i, j]] ** 2)), np.sqrt(np.mean(unit[[i, j]] ** 2))
        self.mean, self.std, self.step = (
            torch.as_tensor(v, dtype=torch.float32) for v in (now.mean(0), std.clip(1e-6), unit.clip(1e-9))
        )
        if self.framed or opt.turn:
            self.mean[[c for pair in self.pairs for c in pair]] = 0

    def rotate(self, x, cos, sin, pairs):
        out = x.clone()
        for i, j in pairs:
            out[..., i], out[..., j] = cos * x[..., i] - sin * x[..., j], sin * x[..., i] + cos * x[..., j]
        return out

    def advance(self, x, y):
        """The next state from scaled increments of the free coordinates (in the node's frame)."""
        full = torch.zeros_like(x)
        full[..., self.free] = y * self.step[self.free]
        if self.framed:
            full = self.rotate(full, x[..., self.turns[0][0]], x[..., self.turns[0][1]], self.pairs)
        new = x + full
        out = new.clone()
        for p, v, dt in self.moves:
            out[..., p] = x[..., p] + dt * (x[..., v] + new[..., v]) / 2
        for i, j, w, dt in self.turns:
            t = (dt * (x[..., w] + new[..., w]) / 2).clamp(-3, 3)
            out[..., [i, j]] = self.rotate(x, t.cos(), t.sin(), [(i, j)])[..., [i, j]]
        return self.project(out)

    def targets(self, x, nxt):
        full = nxt - x
        if self.framed:
            full = self.rotate(full, x[..., self.turns[0][0]], -x[..., self.turns[0][1]], self.pairs)
        return (full / self.step)[..., self.free]

    def project(self, x):
        out = x.clone()
        for i, j in self.circles:
            out[..., [i, j]] = x[..., [i, j]] / x[..., [i, j]].norm(dim=-1, keepdim=True).clamp(min=1e-3)
        return out


def mlp(i, o, w):
    return nn.Sequential(nn.Linear(i, w), nn.SiLU(), nn.Linear(w, o))


class Round(nn.Module):
    def __init__(self, w, edge):
        super().__init__()
        self.sender, self.receiver = nn.Linear(w, w), nn.Linear(w, w, bias=False)
        self.edge, self.update = nn.Linear(edge, w, bias=False), mlp(2 * w, w, w)
        self.after = nn.Sequential(nn.SiLU(), nn.Linear(w, w), nn.SiLU())

    def forward(self, h, e, s, r):
        said = self.after(self.sender(h)[s] + self.receiver(h)[r] + self.edge(e))
        return h + self.update(torch.cat([h, torch.zeros_like(h).index_add(0, r, said)], -1))


class Model(nn.Module):
    def __init__(self, systems, opt):
        super().__init__()
        torch.manual_seed(opt.seed)
        self.opt, self.structure = opt, Structure(systems, opt)
        st, w = self.structure, opt.width
        self.types, self.relations = (1 + max(int(s[key].max()) for s in systems) for key in ("node_type", "edge_type"))
        self.p = systems[0]["actions"].shape[-1]
        self.push = max(float(np.abs(s["actions"]).max()) for s in systems)
        dropped = [m[0] for m in st.moves] + list(st.turns[0][:2]) if st.framed else []
        self.kept = [c for c in range(st.d) if c not in dropped]
        self.encode = mlp(len(self.kept) + self.p + self.types + opt.latent, w, w)
        edge = st.d + self.relations + (2 if st.framed else 0)
        self.passes = nn.ModuleList([Round(w, edge) for _ in range(opt.rounds)])
        self.decode = mlp(w, w, w)
        self.width = w + 1
        self.V = nn.Parameter(torch.randn(self.width, len(st.free)) * 0.1 / self.width**0.5)
        self.log_kappa = nn.Parameter(torch.tensor(-1.0))
        self.register_buffer("G0", torch.eye(self.width))
        self.theta = nn.Parameter(0.1 * torch.randn(len(systems), opt.latent))

    def graph(self, one, copies):
        n = one["observations"].shape[2]
        shift = np.arange(copies)[:, None] * n
        s, r = ((row + shift).ravel() for row in one["edges"])
        return [s, r, np.tile(one["edge_type"], copies), np.tile(one["node_type"], copies)]

    def joined(self, graphs):
        shifts = np.cumsum([0, *(len(k) for *_, k in graphs)])
        moved = [(s + shift, r + shift, e, k) for (s, r, e, k), shift in zip(graphs, shifts[:-1], strict=True)]
        s, r, e, k = (torch.as_tensor(np.concatenate(p)) for p in zip(*moved, strict=True))
        return s, r, torch.eye(self.relations)[e], torch.eye(self.types)[k]

    def forward(self, x, a, graph, theta):
        """Features [rows, width], the last a constant."""
        (s, r, relation, kind), st = graph, self.structure
        z = (x - st.mean) / st.std
        e = z[s] - z[r]
        if st.framed:
            i, j = st.turns[0][:2]
            c, sn = x[:, i], -x[:, j]
            z = st.rotate(z, c, sn, st.pairs)
            e = st.rotate(e, c[r], sn[r], st.pairs)
            e = torch.cat([e, st.rotate(x[s], c[r], sn[r], [(i, j)])[:, [i, j]]], -1)
        h = self.encode(torch.cat([z[:, self.kept], kind, a / self.push, theta], -1))
        e = torch.cat([e, relation], -1)
        for one in self.passes:
            h = one(h, e, s, r)
        return torch.cat([self.decode(h), torch.ones_like(h[:, :1])], -1)

    def shift(self, H, Y, kappa):
        if kappa == float("inf"):
            return torch.zeros_like(self.V)
        H, Y = H.double(), Y.double()
        G = H.T @ H / len(H) + kappa * (self.G0.double() + 1e-6 * torch.eye(self.width) * self.G0.diagonal().mean())
        return torch.linalg.solve(G, H.T @ (Y - H @ self.V.double()) / len(H)).float()

    def take(self, one, picks, length, turn):
        """Windows: x [length+1, B*n, d], a [length, B*n, p]."""
        x = torch.as_tensor(np.stack([one["observations"][e, t : t + length + 1] for e, t in picks], 1)).float()
        a = torch.as_tensor(np.stack([one["actions"][e, t : t + length] for e, t in picks], 1)).float()
        if turn is not None:
            c, s = torch.tensor(np.cos(turn)).float(), torch.tensor(np.sin(turn)).float()
            x = self.structure.rotate(x, c, s, self.structure.pairs + self.structure.circles)
            a = self.structure.rotate(a, c, s, [(0, 1)] if self.p == 2 else [])
        return x.flatten(1, 2), a.flatten(1, 2)

    def loss(self, systems, horizon, rng, names, loop):
        opt, st = self.opt, self.structure
        rolled, fitted = [], []  # (x, a, graph, system of each row)
        for g, one in enumerate(systems):
            E, T, n = one["actions"].shape[:3]
            turn, order = rng.uniform(0, 2 * np.pi) if opt.turn else None, rng.permutation(E)
            used = rng.integers(1, min(4, E - 1) + 1) if loop else 0
            parts = (rolled, order[used:], opt.windows, horizon), (fitted, order[:used], opt.rows, 1)
            for kept, episodes, count, length in parts:
                if len(episodes):
                    picks = [(e, int(rng.integers(T - length + 1))) for e in rng.choice(episodes, count)]
                    kept.append((*self.take(one, picks, length, turn), self.graph(one, count), np.full(count * n, g)))
        X, A, graphs, owner = zip(*rolled, strict=True)
        graph, x, a, owner = self.joined(graphs), torch.cat(X, 1), torch.cat(A, 1), np.concatenate(owner)
        theta = self.theta[names]
        penalty = 1e-3 * theta.square().mean()
        M = self.V.expand(len(systems), -1, -1)
        if loop:
            X, A, graphs, which = zip(*fitted, strict=True)
            (p, q), counts = torch.cat(X, 1), [len(w) for w in which]
            H = self(p, torch.cat(A, 1)[0], self.joined(graphs), theta[np.concatenate(which)])
            Y, kappa = st.targets(p, q), self.log_kappa.exp() + 1e-3
            parts = list(zip(H.split(counts), Y.split(counts), strict=True))
            with torch.no_grad():
                self.G0.lerp_(torch.stack([h.T @ h / len(h) for h, _ in parts]).mean(0), 0.02)
            kept = torch.as_tensor(rng.random(len(systems)) >= opt.plain).float()[:, None, None]
            M = M + kept * torch.stack([self.shift(h, y, kappa) for h, y in parts])
        now, total = st.project(x[0] + opt.noise * st.std * torch.randn_like(x[0])), 0.0
        for t in range(horizon):
            h = self(now, a[t], graph, theta[owner])
            now = st.advance(now, torch.einsum("rh,rhq->rq", h, M[owner]).clamp(-30, 30))
            total = total + ((now - x[t + 1]) / st.step).clamp(-20, 20).square().mean()
        return total / horizon + penalty

    def refresh(self, systems, rows=100):
        """G0: the mean Gram matrix of the features over the training systems."""
        rng, grams = np.random.default_rng(0), []
        with torch.no_grad():
            for g, one in enumerate(systems):
                E, T = one["actions"].shape[:2]
                x, a = self.take(one, [(int(rng.integers(E)), int(rng.integers(T))) for _ in range(rows)], 1, None)
                h = self(x[0], a[0], self.joined([self.graph(one, rows)]), self.theta[g].expand(len(x[0]), -1))
                grams.append(h.T @ h / len(h))
            self.G0.copy_(torch.stack(grams).mean(0))


def trained(systems, opt):
    model, rng = Model(systems, opt), np.random.default_rng(opt.seed)
    optimiser, begin, count, loop = torch.optim.Adam(model.parameters()), time.process_time(), 0, False
    while (share := (time.process_time() - begin) / (60 * opt.minutes)) < 1:
        horizon = next(k for until, k in opt.horizons if share < until)
        for group in optimiser.param_groups:
            group["lr"] = opt.rate * (0.02 + 0.49 * (1 + np.cos(np.pi * share))) * min(1, (count + 1) / 50)
        names = rng.choice(len(systems), min(opt.systems, len(systems)), replace=False)
        if opt.loop and not loop and share >= opt.warm:
            model.refresh(systems)
            loop = True
        loss = model.loss([systems[i] for i in names], horizon, rng, torch.as_tensor(names), loop)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        count += 1
    model.refresh(systems)
    return model


def near(one, hops):
    A = np.eye(one["observations"].shape[2])
    A[one["edges"][1], one["edges"][0]] = 1
    return [np.nonzero(row)[0] for row in np.linalg.matrix_power(A, hops)]


class Adapted:
    """A model adapted to the first k episodes of a system: latent, shift, dense part."""

    @torch.no_grad()
    def __init__(self, model, one, k, opt):
        self.opt, self.one, self.n = opt, one, one["observations"].shape[2]
        self.x, self.a = (torch.as_tensor(one[key][:k]).float() for key in ("observations", "actions"))
        T = self.a.shape[1]
        cells = [(e, t) for e in range(k) for t in range(T)]

        self.model, self.groups, scores = model, near(one, opt.hops), np.zeros(len(KAPPAS))
        side = {c: int(c[1] >= T // 2) if k == 1 else c[0] % 2 for c in cells}
        folds = []
        for i in (0, 1):  # fitted on one half, rolled out on the other
            fitted = [c for c in cells if side[c] == i]
            starts = [c for c in cells if side[c] != i and c[1] in (0, T // 2)][:8]
            theta = self._latent(fitted)
            folds.append((theta, *self._rows(theta, fitted), starts))
        for theta, H, Y, _, starts in folds:
            scores += self._score(theta, torch.stack([self._operator(H, Y, kappa) for kappa in KAPPAS]), None, starts)
        self.kappa, self.lam, best = KAPPAS[int(scores.argmin())], float("inf"), scores.min()
        scores = np.zeros(len(LAMBDAS))
        for theta, H, Y, Z, starts in folds:
            M = self._operator(H, Y, self.kappa)
            W = torch.stack([self._dense(Z, Y - H @ M, lam) for lam in LAMBDAS])
            scores += self._score(theta, M.expand(len(LAMBDAS), -1, -1), W, starts)
        if scores.min() < 0.97 * best:
            self.lam = LAMBDAS[int(scores.argmin())]
        self.theta = self._latent(cells)
        H, Y, Z = self._rows(self.theta, cells)
        self.M = self._operator(H, Y, self.kappa)
        self.W = None if self.lam == float("inf") else self._dense(Z, Y - H @ self.M, self.lam)

    def _operator(self, H, Y, kappa):
        return self.model.V + self.model.shift(H.flatten(0, 1), Y.flatten(0, 1), kappa)

    def _latent(self, cells, steps=60, horizon=5, batch=8):
        """The system's latent, by Adam on short rollouts of some of its steps under V."""
        rng, model, st = np.random.default_rng(1), self.model, self.model.structure
        theta = model.theta.mean(0).clone().requires_grad_()
        optimiser, allowed = torch.optim.Adam([theta], lr=0.05), set(cells)
        starts = [c for c in cells if (c[0], c[1] + horizon - 1) in allowed]
        graph = model.joined([model.graph(self.one, batch)])
        with torch.enable_grad():
            for step in range(steps):
                optimiser.param_groups[0]["lr"] = 0.05 * (1 - 0.9 * step / steps)
                x, a = model.take(self.one, [starts[i] for i in rng.integers(len(starts), size=batch)], horizon, None)
                now, total = st.project(x[0] + self.opt.noise * st.std * torch.randn_like(x[0])), 0.0
                for t in range(horizon):
                    h = model(now, a[t], graph, theta.expand(len(now), -1))
                    now = st.advance(now, (h @ model.V).clamp(-30, 30))
                    total = total + ((now - x[t + 1]) / st.step).clamp(-20, 20).square().mean()
                optimiser.zero_grad()
                total.backward(inputs=[theta])
                nn.utils.clip_grad_norm_([theta], 1.0)
                optimiser.step()
        return theta.detach()

    def _z(self, x, a):
        """[..., n, d] to a list of regressors per node."""
        m = self.model
        z = torch.cat([(x - m.structure.mean) / m.structure.std, a / m.push], -1)
        out = [z[..., g, :].flatten(-2) for g in self.groups]
        return [torch.cat([v, torch.ones_like(v[..., :1])], -1) for v in out]

    def _rows(self, theta, cells):
        m = self.model
        e, t = np.array(cells).T
        x, a, nxt = self.x[e, t], self.a[e, t], self.x[e, t + 1]
        H = []
        for lo in range(0, len(x), 200):
            part, acts = x[lo : lo + 200], a[lo : lo + 200]
            graph = m.joined([m.graph(self.one, len(part))])
            H.append(
                m(part.flatten(0, 1), acts.flatten(0, 1), graph, theta.expand(len(part) * self.n, -1)).unflatten(
                    0, (-1, self.n)
                )
            )
        return torch.cat(H), m.structure.targets(x, nxt), self._z(x, a)

    def _dense(self, Z, R, lam):
        """Padded weights [n, widest, q]."""
        W = torch.zeros(self.n, max(z.shape[-1] for z in Z), R.shape[-1])
        for i, z in enumerate(Z if lam < float("inf") else []):
            z = z.double()
            G = z.T @ z / len(z) + lam * torch.eye(z.shape[-1], dtype=torch.float64)
            W[i, : z.shape[-1]] = torch.linalg.solve(G, z.T @ R[:, i].double() / len(z)).float()
        return W

    def _roll(self, theta, M, W, x, acts):
        """x [c, n, d], acts [T, c, n, p], M [c, width, q], W None or [c, n, wide, q]; path [T+1, c, n, d]."""
        m, c = self.model, len(x)
        graph, path = m.joined([m.graph(self.one, c)]), [x]
        th = theta.expand(c * self.n, -1)
        for a in acts:
            now = path[-1]
            y = torch.bmm(m(now.flatten(0, 1), a.flatten(0, 1), graph, th).unflatten(0, (c, self.n)), M)
            if W is not None:
                Z = [nn.functional.pad(z, (0, W.shape[2] - z.shape[-1])) for z in self._z(now, a)]
                y = y + torch.einsum("cnz,cnzq->cnq", torch.stack(Z, 1), W)
            path.append(m.structure.advance(now, y.clamp(-30, 30)).nan_to_num().clamp(-1e4, 1e4))
        return torch.stack(path)

    def _score(self, theta, Ms, Ws, starts, steps=40):
        """Mean NRMSE of rollouts, for each of the candidates."""
        c, b = len(Ms), len(starts)
        x = torch.stack([self.x[e, t] for e, t in starts]).repeat(c, 1, 1)
        a = torch.stack([self.a[e, t : t + steps] for e, t in starts], 1).repeat(1, c, 1, 1)
        true = torch.stack([self.x[e, t : t + steps + 1] for e, t in starts], 1).repeat(1, c, 1, 1)
        Ws = None if Ws is None else Ws.repeat_interleave(b, 0)
        path = self._roll(theta, Ms.repeat_interleave(b, 0), Ws, x, a)
        wrong = ((path - true)[1:] / self.model.structure.std).square().mean((2, 3)).sqrt().clamp(max=10)
        return wrong.mean(0).reshape(c, b).mean(1).double().numpy()

    @torch.no_grad()
    def predict(self, episodes):
        """Paths [T+1, episodes, n, d] from the first observations under the recorded actions."""
        x = torch.as_tensor(self.one["observations"][episodes]).float()
        a = torch.as_tensor(self.one["actions"][episodes]).float().transpose(0, 1)
        W = None if self.W is None else self.W.expand(len(x), -1, -1, -1)
        return self._roll(self.theta, self.M.expand(len(x), -1, -1), W, x[:, 0], a).numpy()


def nrmse(path, true, std):
    wrong = np.sqrt(np.square((path - true)[1:] / std).mean((2, 3)))
    return np.nan_to_num(wrong, nan=10, posinf=10).clip(max=10).mean(0)
