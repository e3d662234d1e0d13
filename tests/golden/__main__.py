"""Compute the figures again and write them, with the versions that are declared; those of recordings that are not here
stay."""

import json

import numpy as np

from gce.reproduce.versions import declared
from golden import NUMBERS, VERSIONS, cases, compute

with np.load(NUMBERS) as archive:
    kept = {name: archive[name] for name in archive.files if name.startswith("peer")}
np.savez_compressed(NUMBERS, **{**kept, **{name: compute(name) for name in cases()}})
VERSIONS.write_text(json.dumps(declared(), indent=2) + "\n")
