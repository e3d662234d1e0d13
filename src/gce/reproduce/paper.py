"""The paper's own figures (Cheng et al. 2025, its tables and its appendix): (mean, std), to stand beside ours."""

from __future__ import annotations

Figure = tuple[float, float]

SEEN, UNSEEN = "in-distribution", "few-shot"

# world, split, method: (control cost, control error)
MAIN: dict[tuple[str, str, str], tuple[Figure, Figure]] = {}


def _main(world: str, rows: dict[str, tuple[float, ...]]) -> None:
    for method, (c1, cs1, e1, es1, c2, cs2, e2, es2) in rows.items():
        MAIN[world, SEEN, method] = ((c1, cs1), (e1, es1))
        MAIN[world, UNSEEN, method] = ((c2, cs2), (e2, es2))


_main(
    "rope",
    {
        "vae": (259.7, 80.9, 0.65, 0.14, 282.4, 82.3, 0.69, 0.25),
        "pcc": (212.6, 64.2, 0.58, 0.12, 246.7, 71.5, 0.62, 0.13),
        "graph_ode": (187.2, 51.7, 0.49, 0.13, 198.0, 53.8, 0.49, 0.09),
        "kpm": (148.5, 39.3, 0.36, 0.09, 206.1, 43.5, 0.21, 0.04),
        "cko": (135.9, 28.0, 0.30, 0.06, 168.5, 45.4, 0.22, 0.04),
        "ours_vmf": (137.5, 30.2, 0.27, 0.09, 146.3, 49.7, 0.13, 0.05),
        "ours_laplace": (130.6, 32.7, 0.32, 0.06, 162.8, 46.2, 0.17, 0.05),
        "ours_gaussian": (122.6, 19.2, 0.26, 0.08, 159.4, 43.1, 0.14, 0.03),
    },
)
_main(
    "soft",
    {
        "vae": (314.7, 57.0, 0.54, 0.25, 768.1, 137.0, 0.49, 0.24),
        "pcc": (289.4, 49.7, 0.51, 0.22, 698.3, 102.6, 0.45, 0.21),
        "graph_ode": (194.9, 35.6, 0.33, 0.15, 472.9, 84.1, 0.29, 0.13),
        "kpm": (164.6, 22.6, 0.19, 0.09, 388.5, 65.8, 0.20, 0.08),
        "cko": (160.8, 26.4, 0.17, 0.06, 357.6, 63.7, 0.20, 0.07),
        "ours_vmf": (155.2, 28.3, 0.16, 0.08, 357.2, 61.4, 0.22, 0.10),
        "ours_laplace": (169.5, 19.1, 0.18, 0.09, 382.5, 70.9, 0.19, 0.08),
        "ours_gaussian": (158.6, 21.7, 0.13, 0.05, 344.2, 56.3, 0.12, 0.06),
    },
)
_main(
    "swim",
    {
        "vae": (573.1, 108.7, 0.73, 0.19, 835.4, 113.2, 0.92, 0.15),
        "pcc": (513.3, 92.5, 0.68, 0.15, 732.8, 94.5, 0.80, 0.12),
        "graph_ode": (417.8, 87.9, 0.52, 0.17, 693.5, 58.2, 0.58, 0.09),
        "kpm": (385.5, 75.2, 0.44, 0.06, 523.4, 22.8, 0.61, 0.11),
        "cko": (389.1, 76.9, 0.42, 0.13, 421.0, 70.0, 0.44, 0.08),
        "ours_vmf": (392.7, 73.1, 0.45, 0.09, 452.3, 62.9, 0.43, 0.15),
        "ours_laplace": (403.1, 68.3, 0.46, 0.13, 435.7, 74.4, 0.45, 0.10),
        "ours_gaussian": (383.7, 77.8, 0.41, 0.08, 404.3, 74.2, 0.41, 0.09),
    },
)

NOISES = (0.0, 0.02, 0.05, 0.1, 0.2)

# method, noise: (control cost, control error); None is the paper's NaN
GRID: dict[tuple[str, float], tuple[Figure | None, Figure | None]] = {
    ("graph_ode", 0.0): ((13.29, 0.95), (0.58, 0.043)),
    ("graph_ode", 0.02): ((14.93, 1.06), (0.62, 0.073)),
    ("kpm", 0.0): ((9.19, 1.66), (0.42, 0.028)),
    ("kpm", 0.02): ((11.70, 1.68), (0.50, 0.022)),
    ("cko", 0.0): ((11.04, 0.82), (0.47, 0.031)),
    ("cko", 0.02): ((11.22, 0.84), (0.48, 0.034)),
    ("cko", 0.05): ((11.69, 1.67), (0.51, 0.027)),
    ("cko", 0.1): ((12.42, 2.27), (0.65, 0.051)),
    ("cko", 0.2): ((15.15, 4.55), (0.85, 0.055)),
    ("ours_gaussian", 0.0): ((4.77, 0.61), (0.21, 0.005)),
    ("ours_gaussian", 0.02): ((4.99, 0.69), (0.27, 0.018)),
    ("ours_gaussian", 0.05): ((5.72, 0.91), (0.39, 0.024)),
    ("ours_gaussian", 0.1): ((7.81, 1.13), (0.63, 0.037)),
    ("ours_gaussian", 0.2): ((11.43, 1.14), (0.83, 0.041)),
}
GRID |= {(method, noise): (None, None) for method in ("graph_ode", "kpm") for noise in (0.05, 0.1, 0.2)}

FITTING_NUMBERS = (1, 4, 8, 16, 32)

# form, episodes: (control cost, control error)
FITTING: dict[tuple[str, int], tuple[Figure, Figure]] = {
    ("dense", 1): ((183.8, 38.6), (0.79, 0.25)),
    ("dense", 4): ((163.9, 42.9), (0.41, 0.11)),
    ("dense", 8): ((161.6, 42.9), (0.36, 0.12)),
    ("dense", 16): ((160.9, 41.5), (0.28, 0.08)),
    ("dense", 32): ((159.6, 39.6), (0.26, 0.10)),
    ("hom", 1): ((147.3, 22.9), (0.74, 0.25)),
    ("hom", 4): ((149.2, 34.5), (0.32, 0.08)),
    ("hom", 8): ((135.9, 27.9), (0.30, 0.06)),
    ("hom", 16): ((131.6, 32.8), (0.30, 0.06)),
    ("hom", 32): ((130.2, 35.6), (0.30, 0.06)),
    ("hom_mean", 1): ((135.3, 31.2), (0.51, 0.12)),
    ("hom_mean", 4): ((119.8, 17.5), (0.29, 0.09)),
    ("hom_mean", 8): ((122.7, 19.2), (0.26, 0.08)),
    ("hom_mean", 16): ((118.7, 20.8), (0.25, 0.08)),
    ("hom_mean", 32): ((111.7, 24.9), (0.23, 0.09)),
}

# features, noise: (control cost, control error)
DIMENSION: dict[tuple[int, float], tuple[Figure, Figure]] = {
    (8, 0.0): ((8.74, 2.78), (0.24, 0.008)),
    (16, 0.0): ((6.74, 1.64), (0.23, 0.007)),
    (32, 0.0): ((4.77, 0.61), (0.21, 0.005)),
    (64, 0.0): ((10.45, 2.44), (0.20, 0.008)),
    (8, 0.02): ((9.80, 2.84), (0.29, 0.011)),
    (16, 0.02): ((7.44, 0.44), (0.29, 0.009)),
    (32, 0.02): ((4.99, 0.69), (0.27, 0.018)),
    (64, 0.02): ((13.56, 1.56), (0.28, 0.013)),
}

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
