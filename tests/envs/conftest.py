"""What several tests of worlds begin with."""

from __future__ import annotations

import numpy as np
import pytest

from gce.envs.grid import GridParameters
from grids import drawn


@pytest.fixture(scope="session")
def sixteen() -> list[GridParameters]:
    sizes = np.random.default_rng(7).integers(50, 101, 16)
    return [drawn(seed, int(n)) for seed, n in enumerate(sizes)]
