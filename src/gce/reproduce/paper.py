"""The paper's own figures (Cheng et al. 2025, its tables and its appendix): (mean, std), to stand beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Figure = tuple[float, float]
Column = TypeVar("Column")

SEEN, UNSEEN = "in-distribution", "few-shot"


def _read(columns: Sequence[Column], text: str) -> Iterator[tuple[str, Column, tuple[Figure, Figure]]]:
    """A row's name, a column, and there (control cost, control error): mean and std of each."""
    for name, *numbers in map(str.split, text.strip().splitlines()):
        groups = zip(*[map(float, numbers)] * 4, strict=True)
        for column, (cost, cost_std, error, error_std) in zip(columns, groups, strict=True):
            yield name, column, ((cost, cost_std), (error, error_std))


_MAIN = """
    rope/vae                259.7  80.9  0.65  0.14   282.4  82.3  0.69  0.25
    rope/pcc                212.6  64.2  0.58  0.12   246.7  71.5  0.62  0.13
    rope/graph_ode          187.2  51.7  0.49  0.13   198.0  53.8  0.49  0.09
    rope/kpm                148.5  39.3  0.36  0.09   206.1  43.5  0.21  0.04
    rope/cko                135.9  28.0  0.30  0.06   168.5  45.4  0.22  0.04
    rope/published_vmf      137.5  30.2  0.27  0.09   146.3  49.7  0.13  0.05
    rope/published_laplace  130.6  32.7  0.32  0.06   162.8  46.2  0.17  0.05
    rope/published          122.6  19.2  0.26  0.08   159.4  43.1  0.14  0.03
    soft/vae                314.7  57.0  0.54  0.25   768.1 137.0  0.49  0.24
    soft/pcc                289.4  49.7  0.51  0.22   698.3 102.6  0.45  0.21
    soft/graph_ode          194.9  35.6  0.33  0.15   472.9  84.1  0.29  0.13
    soft/kpm                164.6  22.6  0.19  0.09   388.5  65.8  0.20  0.08
    soft/cko                160.8  26.4  0.17  0.06   357.6  63.7  0.20  0.07
    soft/published_vmf      155.2  28.3  0.16  0.08   357.2  61.4  0.22  0.10
    soft/published_laplace  169.5  19.1  0.18  0.09   382.5  70.9  0.19  0.08
    soft/published          158.6  21.7  0.13  0.05   344.2  56.3  0.12  0.06
    swim/vae                573.1 108.7  0.73  0.19   835.4 113.2  0.92  0.15
    swim/pcc                513.3  92.5  0.68  0.15   732.8  94.5  0.80  0.12
    swim/graph_ode          417.8  87.9  0.52  0.17   693.5  58.2  0.58  0.09
    swim/kpm                385.5  75.2  0.44  0.06   523.4  22.8  0.61  0.11
    swim/cko                389.1  76.9  0.42  0.13   421.0  70.0  0.44  0.08
    swim/published_vmf      392.7  73.1  0.45  0.09   452.3  62.9  0.43  0.15
    swim/published_laplace  403.1  68.3  0.46  0.13   435.7  74.4  0.45  0.10
    swim/published          383.7  77.8  0.41  0.08   404.3  74.2  0.41  0.09
"""
MAIN = {
    (world, split, method): both
    for name, split, both in _read((SEEN, UNSEEN), _MAIN)
    for world, method in [name.split("/")]
}

COMPARABLE = ("soft", "swim")
"""Worlds in which its text calls CKO comparable, of the sizes trained on."""

_GRID = """
    0.0     4.77 0.61 0.21 0.005   11.04 0.82 0.47 0.031    9.19 1.66 0.42 0.028   13.29 0.95 0.58 0.043
    0.02    4.99 0.69 0.27 0.018   11.22 0.84 0.48 0.034   11.70 1.68 0.50 0.022   14.93 1.06 0.62 0.073
    0.05    5.72 0.91 0.39 0.024   11.69 1.67 0.51 0.027     nan  nan  nan   nan     nan  nan  nan   nan
    0.1     7.81 1.13 0.63 0.037   12.42 2.27 0.65 0.051     nan  nan  nan   nan     nan  nan  nan   nan
    0.2    11.43 1.14 0.83 0.041   15.15 4.55 0.85 0.055     nan  nan  nan   nan     nan  nan  nan   nan
"""
_METHODS = ("published", "cko", "kpm", "graph_ode")
GRID = {(method, float(noise)): both for noise, method, both in _read(_METHODS, _GRID)}
NOISES = (0.0, 0.02, 0.05, 0.1, 0.2)

_FITTING = """
    1    183.8 38.6 0.79 0.25   147.3 22.9 0.74 0.25   135.3 31.2 0.51 0.12
    4    163.9 42.9 0.41 0.11   149.2 34.5 0.32 0.08   119.8 17.5 0.29 0.09
    8    161.6 42.9 0.36 0.12   135.9 27.9 0.30 0.06   122.7 19.2 0.26 0.08
    16   160.9 41.5 0.28 0.08   131.6 32.8 0.30 0.06   118.7 20.8 0.25 0.08
    32   159.6 39.6 0.26 0.10   130.2 35.6 0.30 0.06   111.7 24.9 0.23 0.09
"""
FITTING = {(form, int(episodes)): both for episodes, form, both in _read(("dense", "hom", "hom_mean"), _FITTING)}
FITTING_NUMBERS = (1, 4, 8, 16, 32)

_DIMENSION = """
    8     8.74 2.78 0.24 0.008    9.80 2.84 0.29 0.011
    16    6.74 1.64 0.23 0.007    7.44 0.44 0.29 0.009
    32    4.77 0.61 0.21 0.005    4.99 0.69 0.27 0.018
    64   10.45 2.44 0.20 0.008   13.56 1.56 0.28 0.013
"""
DIMENSION = {(int(features), noise): both for features, noise, both in _read((0.0, 0.02), _DIMENSION)}

# The published models of Li et al. (2020) on their own recorded goals, as measured with their code on eight groups:
# world, method: (control error, control error of positions, mean NRMSE of 100 steps)
PUBLISHED: dict[tuple[str, str], tuple[Figure, Figure, float]] = {
    ("rope", "cko"): ((0.331, 0.108), (0.087, 0.031), 0.295),
    ("rope", "kpm"): ((0.399, 0.232), (0.172, 0.069), 0.572),
    ("soft", "cko"): ((0.198, 0.079), (0.023, 0.010), 0.299),
    ("soft", "kpm"): ((0.338, 0.155), (0.063, 0.035), 1.61),
    ("swim", "cko"): ((0.405, 0.156), (0.063, 0.030), 0.215),
    ("swim", "kpm"): ((0.600, 0.150), (0.131, 0.070), 0.297),
}

# The same of CKO in each of the first four groups: world: (control errors, those of positions, mean NRMSEs)
PUBLISHED_GROUPS: dict[str, tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {
    "rope": ((0.506, 0.197, 0.414, 0.265), (0.134, 0.081, 0.103, 0.059), (0.338, 0.546, 0.288, 0.159)),
    "soft": ((0.183, 0.112, 0.079, 0.222), (0.011, 0.023, 0.011, 0.020), (0.342, 0.187, 0.137, 0.323)),
    "swim": ((0.752, 0.348, 0.296, 0.440), (0.040, 0.091, 0.071, 0.032), (0.230, 0.140, 0.258, 0.193)),
}

FEATURES_PER_METRIC = 32 / 10
"""Their metric term asks that ten times the mean square of 32 features be the mean square of the coordinates."""
