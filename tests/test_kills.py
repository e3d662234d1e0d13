"""Recordings that are killed go on, bit for bit; `python -m kills` in tests/ does it to all long jobs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__import__("gce").__file__).parents[1]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="tells processes apart by /proc")
def test_recordings_killed_at_random_moments_go_on_bit_for_bit():
    done = subprocess.run(
        [sys.executable, "-m", "kills", "--kills", "5", "--terms", "0", "--seed", "1", "--job", "record"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
