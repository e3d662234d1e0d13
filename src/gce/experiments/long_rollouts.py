"""Do predictions stay bounded? Random systems of each world, adapted to 8 episodes, predicted 1,000 steps ahead.

Actions are the world's recorded kind, drawn for 1,000 steps on the true simulator; the prediction sees only the first
observation and the actions. Nothing is clipped. A prediction counts as bounded if it is finite and stays within five
times the range of the adaptation episodes of all systems, about its middle.

    python -m gce.experiments.long_rollouts --world rope --systems 1000 --out results
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gce.envs import world_named
from gce.files import load_model, shipped
from gce.metrics import nrmse
from gce.system import collect, fitted
from gce.trajectory import Episode

TIMES_RANGE = 5.0


@dataclass
class LongRollouts:
    """Predict many systems far ahead; write long_rollouts_WORLD.json."""

    world: str = "rope"
    """The world."""
    systems: int = 1000
    """How many random systems."""
    steps: int = 1000
    """Steps predicted."""
    adapt: int = 8
    """Episodes adapted to."""
    seed: int = 12345
    """Of the systems; none of them was trained on."""
    model: Path | None = None
    """A model's folder; by default the shipped one."""
    out: Path = Path("results")
    """The folder to write to."""

    def run(self) -> None:
        import torch

        torch.set_num_threads(1)
        model = load_model(self.model or shipped(self.world))
        world = world_named(self.world)
        env = world(objects=world.object_range)
        self.out.mkdir(parents=True, exist_ok=True)
        target = self.out / f"long_rollouts_{self.world}.json"
        lows, highs, reached, errors, finite = [], [], [], [], []
        for k in range(self.systems):
            env.reset(seed=self.seed + k)
            parameters = env.parameters

            def episode(steps: int, seed: int, parameters: object = parameters) -> Episode:
                env.reset(seed=seed, options={"parameters": parameters})
                observations, actions = env.run(env.excitation(np.random.default_rng([seed, 1]), steps), steps)
                return Episode(env.graph, observations, actions)

            adapting = [episode(100, 1_000_000 + 10 * k + e) for e in range(self.adapt)]
            truth = episode(self.steps, 2_000_000 + k)
            sums, starts = collect(model, adapting, env.graph)
            system = fitted(model, env.graph, sums, starts, None, np.zeros((1, model.config.num_observations)))
            predicted = system.predict(truth.observations[0], truth.actions)
            seen = np.concatenate([e.observations.reshape(-1, predicted.shape[-1]) for e in adapting])
            lows.append(seen.min(0))
            highs.append(seen.max(0))
            finite.append(bool(np.isfinite(predicted).all()))
            reached.append((predicted.min((0, 1)), predicted.max((0, 1))))
            errors.append(nrmse(predicted[1:], truth.observations[1:], world.observation_std))
            if (k + 1) % 10 == 0 or k + 1 == self.systems:
                target.write_text(json.dumps(self._summary(lows, highs, reached, errors, finite), indent=2) + "\n")
                print(f"{self.world}: {k + 1}/{self.systems}", file=sys.stderr)
        print(target.read_text())

    def _summary(
        self,
        lows: list[np.ndarray],
        highs: list[np.ndarray],
        reached: list[tuple[np.ndarray, np.ndarray]],
        errors: list[np.ndarray],
        finite: list[bool],
    ) -> dict[str, object]:
        low, high = np.min(lows, axis=0), np.max(highs, axis=0)
        middle, half = (low + high) / 2, (high - low) / 2
        far = [
            float(np.max(np.maximum(np.abs(a - middle), np.abs(b - middle)) / half)) if ok else float("inf")
            for (a, b), ok in zip(reached, finite, strict=True)
        ]
        by_step = {str(s): float(np.median([e[s - 1] for e in errors])) for s in (100, 300, self.steps)}
        return {
            **{k: v for k, v in dataclasses.asdict(self).items() if k in ("world", "steps", "adapt", "seed")},
            "systems": len(errors),
            "finite": int(np.sum(finite)),
            "within_five_times_range": int(np.sum(np.array(far) <= TIMES_RANGE)),
            "largest_multiple_of_range": float(np.max(far)),
            "median_nrmse": by_step,
        }


if __name__ == "__main__":
    import tyro

    tyro.cli(LongRollouts).run()
