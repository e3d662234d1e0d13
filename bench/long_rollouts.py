"""Do predictions stay bounded? Random systems of a world, adapted to 8 episodes, predicted 1,000 steps ahead.

Actions are the world's recorded kind, drawn for 1,000 steps on the true simulator; the prediction sees only the first
observation and the actions. Nothing is clipped. A prediction is bounded if it is finite and stays within five times
the range of what the simulator did, about the middle of that range, in every coordinate. Three ranges are reported:
that of the true episodes of the same length, that of the 100-step episodes adapted to (both over all systems), and
that which 99% of the systems' true episodes keep within: some true robots fold over, and are then thrown about. Where
the simulator itself does not stay finite there is no truth; such systems count for finite and bounded predictions
all the same. A free body travels, so where observations are points in the plane, places about the body's centre and
velocities are judged on their own as well.

Work is kept by batches of systems beside the result: the same command goes on after a stop.

    python -m bench.long_rollouts --world rope --systems 1000 --workers 2
"""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.lines import write_json
from gce.envs import world_named
from gce.envs.recording import excited
from gce.errors import InputError
from gce.metrics import nrmse
from gce.model.files import load_model, shipped
from gce.progress import progress, run_module, workers
from gce.reproduce.experiment import write_file
from gce.reproduce.statistics import csv_text
from gce.system.system import adapt, predict_together
from gce.trajectory import Episode

TIMES_RANGE = 5.0
REPORTED = (100, 300, 1000)

Record = dict[str, Any]
"""Of one system: seed, nodes, finite, true_finite, nrmse by step, and (low, high) of each view of each path."""


@dataclass
class LongRollouts:
    """Predict many systems far ahead; write long_rollouts_WORLD.json and, a row a system, .csv."""

    world: str = "rope"
    """The world."""
    systems: int = 1000
    """How many random systems."""
    steps: int = 1000
    """Steps predicted."""
    adapt: int = 8
    """Episodes of 100 steps adapted to."""
    seed: int = 12345
    """Of the first system, the others follow; none of them was trained on."""
    model: Path | None = None
    """A model's folder; by default the shipped one."""
    out: Path = Path("results")
    """The folder to write to."""
    batch: int = 50
    """Systems predicted at once."""
    workers: int = 1
    """Processes."""

    def run(self) -> dict[str, Any]:
        for name in ("systems", "steps", "adapt", "batch", "workers"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}, expected at least 1")
        parts = self.out / f".long_rollouts_{self.world}_{self._fingerprint()}"
        try:
            parts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {self.out}: {error.strerror}; give another folder with --out") from None
        files = {k: parts / f"{k}.json" for k in range(0, self.systems, self.batch)}
        missing = [k for k, file in files.items() if not file.is_file()]
        with workers(self.workers) as submit, progress(f"predicting {self.world}", len(files), "batches") as done:
            done(len(files) - len(missing))
            waiting = {submit(self.predict_batch, k): files[k] for k in missing}
            for future in as_completed(waiting):
                write_file(waiting[future], json.dumps(future.result()), "--out")
                done(1)
        records = [record for file in files.values() for record in json.loads(file.read_text())]
        result = self.summary(records)
        write_json(self.out / f"long_rollouts_{self.world}.json", result)
        shutil.rmtree(parts)
        return result

    def predict_batch(self, first: int) -> list[Record]:
        """Systems first, first + 1, ... of the experiment, predicted as one union of graphs."""
        import torch

        torch.set_num_threads(1)
        world = world_named(self.world)
        model = load_model(self.model or shipped(world.usual_model()))
        env = world(objects=world.object_range)
        seeds = range(self.seed + first, self.seed + min(first + self.batch, self.systems))
        systems, truths, adapted = [], [], []
        for seed in seeds:
            env.reset(seed=seed)
            parameters = env.parameters
            # Places in the sequence 0, 1, ... are the adaptation episodes, the last is to be predicted.
            paths = []
            for e in range(self.adapt + 1):
                steps = self.steps if e == self.adapt else 100
                drawn = int(np.random.SeedSequence([seed, e]).generate_state(1)[0])
                paths.append(excited(env, drawn, {"parameters": parameters}, steps=steps))
            *adapting, truth = paths  # far ahead the simulator itself may break down: the last need be no episode
            systems.append(adapt(model, [Episode(env.graph, o, a) for o, a in adapting], measure=False))
            truths.append(truth)
            adapted.append(np.concatenate([o for o, _ in adapting]))
        predicted = predict_together(systems, [o[0] for o, _ in truths], [a for _, a in truths])
        records = []
        for seed, (true, _), short, path in zip(seeds, truths, adapted, predicted, strict=True):
            with np.errstate(all="ignore"):
                error = nrmse(path[1:], true[1:], world.observation_std)
            seen = {"predicted": path, "true": true, "short": short}
            records.append(
                {
                    "seed": seed,
                    "nodes": true.shape[1],
                    "finite": bool(np.isfinite(path).all()),
                    "true_finite": bool(np.isfinite(true).all()),
                    "nrmse": {str(s): float(error[s - 1]) for s in (*REPORTED, self.steps) if s <= self.steps},
                    "ranges": {name: _views(o, model.config.points) for name, o in seen.items()},
                }
            )
        return records

    def summary(self, records: list[Record]) -> dict[str, Any]:
        finite, known = (np.array([record[name] for record in records]) for name in ("finite", "true_finite"))
        within: dict[str, dict[str, int]] = {}
        largest: dict[str, dict[str, float]] = {}
        columns: dict[str, np.ndarray] = {}
        references = {
            f"of_{self.steps}_steps": ("true", 0.0),
            f"of_{self.steps}_steps_99_percent": ("true", 0.01),
            "of_100_steps": ("short", 0.0),
        }
        for view in records[0]["ranges"]["true"]:
            within[view], largest[view] = {}, {}
            for name, (path, left_out) in references.items():
                multiple = np.where(finite, _multiples(records, view, path, left_out), np.inf)
                within[view][name] = int(np.sum(multiple <= TIMES_RANGE))
                largest[view][name] = float(multiple.max())
                columns[f"{view}_{name}"] = multiple
        errors = {step: np.array([record["nrmse"][step] for record in records]) for step in records[0]["nrmse"]}
        rows = []
        for k, record in enumerate(records):
            said = {name: record[name] for name in ("seed", "nodes", "finite", "true_finite")}
            figures = {f"nrmse_{step}": error for step, error in errors.items()} | columns
            rows.append(said | {name: f"{values[k]:.4g}" for name, values in figures.items()})
        write_file(self.out / f"long_rollouts_{self.world}.csv", csv_text(rows), "--out")
        return {
            **{k: v for k, v in asdict(self).items() if k in ("world", "steps", "adapt", "seed")},
            "systems": len(records),
            "finite": int(finite.sum()),
            "true_finite": int(known.sum()),
            "within_five_times_range": within,
            "largest_multiple_of_range": largest,
            "nrmse": {
                step: {"median": float(np.median(e)), "mean": float(e.mean()), "largest": float(e.max())}
                for step, e in ((step, e[known & finite]) for step, e in errors.items())
            },
        }

    def _fingerprint(self) -> str:
        """Of what decides the records: parts of other models or settings are not taken for these."""
        folder = self.model or shipped(world_named(self.world).usual_model())
        text = json.dumps([self.world, self.systems, self.steps, self.adapt, self.seed, self.batch])
        weights = (folder / "model.safetensors").read_bytes() + (folder / "model.json").read_bytes()
        return hashlib.sha256(text.encode() + weights).hexdigest()[:12]


def _views(observations: np.ndarray, points: tuple[tuple[int, ...], ...]) -> dict[str, list[list[float]]]:
    """The (low, high) of each coordinate over time and nodes: as observed, and of points about their centre."""
    views = {"observations": observations}
    if points:
        places = observations[..., [c for p in points for c in p[:2]]].reshape(*observations.shape[:-1], -1, 2)
        views["about_centre"] = places - places.mean((-3, -2), keepdims=True)
        views["velocities"] = observations[..., [c for p in points for c in p[2:]]]
    return {
        name: [v.reshape(-1, v.shape[-1]).min(0).tolist(), v.reshape(-1, v.shape[-1]).max(0).tolist()]
        for name, v in views.items()
    }


def _multiples(records: list[Record], view: str, reference: str, left_out: float) -> np.ndarray:
    """How far each system's prediction goes from the middle of the reference's range, in half ranges.

    left_out: the share of systems whose lowest lows, and highest highs, do not make the range.
    """
    ranges = np.array([record["ranges"][reference][view] for record in records])
    lows, highs = ranges[np.isfinite(ranges).all((1, 2))].swapaxes(0, 1)
    low, high = np.quantile(lows, left_out, axis=0), np.quantile(highs, 1 - left_out, axis=0)
    middle, half = (low + high) / 2, (high - low) / 2
    reached = np.array([record["ranges"]["predicted"][view] for record in records])
    return np.asarray((np.abs(reached - middle) / half).max((1, 2)))


if __name__ == "__main__":
    print(json.dumps(run_module(LongRollouts), indent=2))
