"""Shapes in annotations are checked while the tests run; shared recordings are used where they are."""

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Two threads on a busy core can be ten times slower than one; read when torch and numpy are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Must come before the first import of the package.
_hook = install_import_hook("gce", "shapes.checked")

RECORDINGS = Path(__file__).resolve().parents[2] / "shared" / "peers" / "cko"


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Recordings made by another program with the same physics; kept outside this project."""
    if not RECORDINGS.is_dir():
        pytest.skip("the peer's recordings are not here (shared/peers/cko beside the project): replay not checked")
    return RECORDINGS
