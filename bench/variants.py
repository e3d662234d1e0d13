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


def compare(out: Path, study: str, variants: Variants, minutes: float, seeds: Sequence[int] = (0,)) -> dict[str, Any]:
    """The errors of all variants on all systems; those in the file are taken from there."""
    torch.set_num_threads(1)
    kept: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    of_study = kept.setdefault(study, {})
    for seed in seeds:
        for name, (data, systems, settings) in variants.items():
            if (label := f"{name}, seed {seed}") in of_study:
                continue
            begin = time.process_time()
            found = gce.train(
                data,
                minutes=minutes,
                horizon=20,
                seed=seed,
                method="structured",
                model=settings,
                training={"iterations": 100_000},
            )
            spent = (time.process_time() - begin) / 60
            of_study[label] = {
                "cpu_minutes": round(spent, 2),
                "validation": round(found.validation_nrmse, 5),
                "nrmse": [round(error_on(found.model, episodes), 5) for episodes in systems],
            }
            out.write_text(json.dumps(kept, indent=1) + "\n")
            print(study, label, f"{np.mean(of_study[label]['nrmse']):.4f}", flush=True)
    return {name: np.array([of_study[f"{name}, seed {s}"]["nrmse"] for s in seeds]).mean(0) for name in variants}


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
