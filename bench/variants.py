"""Variants of a model on the same recordings: trained for equal CPU time, judged on systems none of them has seen.

Each is adapted to all but the first episode of a system and predicts that one; its error is the mean NRMSE over the
steps, in units of the training data. Two variants are compared system by system: the ratio of mean errors with a 95%
interval (bootstrap over systems), and Wilcoxon's signed-rank test that the first is smaller. What the file of results
holds is not computed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import wilcoxon

import gce
from gce.errors import undoubted
from gce.metrics import nrmse

RESULTS = Path(__file__).parents[1] / "results"
Variants = Mapping[str, tuple[gce.Dataset, Sequence[Sequence[gce.Episode]], dict[str, Any]]]
"""By name: what to train on, the systems to judge by, and settings of the model."""


def compare(
    out: Path, study: str, variants: Variants, minutes: float, only: Sequence[str] = (), seed: int = 0
) -> dict[str, np.ndarray]:
    """The errors of variants by name, as far as the file holds them or they are asked for.

    only: names of those to train now; all by default.
    """
    torch.set_num_threads(1)
    for name, (data, systems, settings) in variants.items():
        if name in read(out).get(study, {}) or (only and name not in only):
            continue
        begin, last = time.process_time(), 0

        def tell(now: Any) -> None:
            nonlocal last
            last = now.iteration

        found = gce.train(
            data,
            minutes=minutes,
            horizon=20,
            seed=seed,
            method="structured",
            model=settings,
            training={"iterations": 100_000},
            tell=tell,
        )
        spent = (time.process_time() - begin) / 60
        result = {
            "cpu_minutes": round(spent, 2),
            "iterations": last,
            "validation": round(found.validation_nrmse, 5),
            "nrmse": [round(error_on(found.model, episodes), 5) for episodes in systems],
        }
        write(out, study, name, result)
        print(study, name, f"{np.mean(result['nrmse']):.4f}", flush=True)
    known = read(out).get(study, {})
    return {name: np.array(known[name]["nrmse"]) for name in variants if name in known}


def read(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    return found


def write(out: Path, study: str, name: str, result: Any) -> None:
    """One more result; what others wrote meanwhile stays."""
    kept = read(out)
    kept.setdefault(study, {})[name] = result
    out.write_text(json.dumps(kept, indent=1) + "\n")


def error_on(model: gce.Model, episodes: Sequence[gce.Episode]) -> float:
    target, *others = episodes
    truth = target.observations.astype(float)
    with undoubted(), np.errstate(over="ignore", invalid="ignore"):
        predicted = gce.adapt(model, others, measure=False).predict(truth[0], target.actions)
        error = nrmse(predicted[1:], truth[1:], model.observation_std.double().numpy())
    return float(np.nan_to_num(error, nan=10.0).clip(max=10).mean())


def beside(first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
    """How one variant's errors compare with another's on the same systems."""
    draws = np.random.default_rng(0).integers(len(first), size=(10_000, len(first)))
    ratios = first[draws].mean(1) / second[draws].mean(1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {
        "ratio": round(float(first.mean() / second.mean()), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
        "p": float(wilcoxon(first, second, alternative="less").pvalue),
        "n": len(first),
    }
