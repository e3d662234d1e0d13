"""How wrong other weights are on flocks: operators fitted on positions themselves, by the sharpness of the truth.

    python bench/flock_truth.py --systems 24

Of each system eight episodes of 100 steps are fitted by least squares, x_i <- c (sum_j w_ij x_j) + b u_i with numbers
c and b. A ninth is predicted: each step from the one before, and 40 steps from the first. Errors are in the world's
units. `both` has a c for the agent itself and one for the uniform mean. Where uniform weights are wrong, the fitted c
is above 1 and rollouts run away; `uniform, c <= 1` does not.
"""

from __future__ import annotations

import argparse

import numpy as np

from gce.envs import Flock
from gce.metrics import nrmse

SHARPNESS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
FITTED, STEPS, HORIZON = 8, 100, 40
KINDS = ("true", "uniform", "uniform, c <= 1", "identity", "both")

Array = np.ndarray


def inputs(env: Flock, kind: str, x: Array, u: Array) -> Array:
    """What the operator is applied to, [..., nodes, 2, inputs]."""
    near = env.graph.relations() >= 0
    uniform = near / near.sum(axis=1, keepdims=True)
    if kind == "true":
        return np.stack([env.mean_field(x), u], axis=-1)
    fields = {"identity": [x], "both": [x, uniform @ x]}.get(kind, [uniform @ x])
    return np.stack([*fields, u], axis=-1)


def errors(env: Flock, kind: str, episodes: list[tuple[Array, Array]]) -> tuple[float, float, float]:
    """NRMSE of one step, the mean over a rollout, and at its end."""
    *fitted, (x, u) = episodes
    Z = np.concatenate([inputs(env, kind, x[:-1], u) for x, u in fitted])
    Y = np.concatenate([x[1:] for x, _ in fitted])
    c = np.linalg.lstsq(Z.reshape(-1, Z.shape[-1]), Y.reshape(-1), rcond=None)[0]
    if kind.endswith("<= 1"):
        c[0] = min(c[0], 1.0)
    one = nrmse(inputs(env, kind, x[:-1], u) @ c, x[1:], env.observation_std).mean()
    path = [x[0]]
    for t in range(HORIZON):
        path.append(inputs(env, kind, path[-1], u[t]) @ c)
    rolled = nrmse(np.stack(path[1:]), x[1 : HORIZON + 1], env.observation_std)
    return float(one), float(rolled.mean()), float(rolled[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=24)
    parser.add_argument("--process-noise", type=float, default=0.0)
    asked = parser.parse_args()
    print("| sharpness | own weight | effective neighbours | weights | one step | mean of 40 | after 40 |")
    print("|---|---|---|---|---|---|---|")
    for sharpness in SHARPNESS:
        env, found, own, effective, still = Flock((10, 20), sharpness), [], [], [], []
        for seed in range(asked.systems):
            env.reset(seed=seed)
            options, episodes = {"parameters": env.parameters, "process_noise": asked.process_noise}, []
            for k in range(FITTED + 1):
                env.reset(seed=1000 * seed + k, options=options)
                episodes.append(env.run(env.excitation(np.random.default_rng([seed, k]), STEPS), STEPS))
            found.append([errors(env, kind, episodes) for kind in KINDS])
            x = episodes[-1][0]
            alpha = env.weights(x)
            own.append(alpha[:, env.graph.senders == env.graph.receivers].mean())
            entropy = env._over_neighbours(-(alpha * np.log(alpha + 1e-300))[..., None])
            effective.append(np.exp(entropy).mean())
            still.append(nrmse(x[:1].repeat(HORIZON, axis=0), x[1 : HORIZON + 1], env.observation_std)[[0, -1]])
        about = f"| {sharpness} | {np.mean(own):.2f} | {np.mean(effective):.2f} |"
        for kind, (one, rolled, end) in zip(KINDS, np.median(found, axis=0), strict=True):
            print(f"{about} {kind} | {one:.4f} | {rolled:.3f} | {end:.3f} |")
        first, last = np.median(still, axis=0)
        print(f"{about} nothing moves | {first:.4f} | | {last:.3f} |", flush=True)


if __name__ == "__main__":
    main()
