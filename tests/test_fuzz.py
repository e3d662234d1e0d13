"""What ever failed fails no more, and a few new trials of every family pass; `make fuzz` runs many.

In a process of its own: annotations are not checked there, as for whoever uses the package.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__import__("gce").__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a trial is a process forked from the harness")
def test_spoiled_files_and_numbers_are_refused_or_right():
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--trials", "40", "--seed", "11", "--corpus"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
