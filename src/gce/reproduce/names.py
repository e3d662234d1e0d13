"""What methods are called in tables, and which are slow: nothing here decides a run."""

from __future__ import annotations

from gce.reproduce.methods import IN_FEATURES

TITLES = {
    "vae": "VAE",
    "pcc": "PCC",
    "graph_ode": "GraphODE",
    "kpm": "KPM",
    "cko": "CKO",
    "ours_vmf": "ours (vMF)",
    "ours_laplace": "ours (Laplace)",
    "ours_gaussian": "ours (Gaussian)",
    "ours_mlp": "ours (MLP)",
    "ours_shipped": "ours (the package's model)",
    "ours_cheaper": "ours (Gaussian), cheaper plans",
    "ours_60_minutes": "ours (Gaussian), 60 minutes",
    "cko_60_minutes": "CKO, 60 minutes",
    "cko_long": "CKO, trained long",
}
AS_PUBLISHED = "_as_published"
"""What follows a method's name where its plans have the published costs."""
LATENT = ("vae", "pcc")
"""Methods whose plans need iLQR and whose adaptation needs gradient descent: seconds."""
SLOW = ("graph_ode",)
"""The same, minutes."""


def title(name: str) -> str:
    for ending in (IN_FEATURES, AS_PUBLISHED):
        if name.endswith(ending):
            return f"{title(name.removesuffix(ending))}, planned{ending.replace('_', ' ')}"
    return TITLES.get(name, name.replace("_", " "))
