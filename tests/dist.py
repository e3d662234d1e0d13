"""Build the wheel and the source archive, and try each in a clean environment: `make dist`.

The wheel is also tried with nothing but what a planner needs (docs/install.md).
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLANNER = ["numpy", "scipy", "h5py", "jaxtyping", "safetensors", "piqp"]
ADAPTED = """
import gce
gce.record(gce.Recording("rope", 4, (5, 5), 4, seed=8, steps=40), "rope.h5")
data = gce.Dataset.open("rope.h5")
system = gce.adapt(gce.load_model(gce.shipped("rope")), [data[k] for k in range(1, 4)])
gce.save_system(system, "adapted")
"""
PLANNED = """
import numpy as np, gce
system = gce.load_system("adapted")
high = np.zeros((5, 1)); high[0] = 2
start = np.stack([np.zeros(5), -np.arange(5.0), np.zeros(5), np.zeros(5)], axis=1)
problem = gce.Problem(horizon=10, goal=start + [0.1, 0, 0, 0], low=-high, high=high)
print(gce.__version__, gce.Controller(system, problem).plan(start, opening=True))
"""


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))[:300]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def environment(place: Path) -> Path:
    """A clean environment with PyTorch; its python."""
    run(sys.executable, "-m", "venv", place)
    pip = [place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--constraint", ROOT / "constraints.txt", "torch")
    return place / "bin" / "python"


def main() -> None:
    dist = ROOT / "dist"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        python = environment(place / "full")
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(python, *pip, "build")
        for old in dist.glob("graph_controllable_embeddings-*"):
            old.unlink()
        run(python, "-m", "build", "--outdir", dist, ROOT)
        (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        for package in (wheel, archive):
            run(python, *pip, "--constraint", ROOT / "constraints.txt", "--force-reinstall", "--no-deps", package)
            run(python, *pip, "--constraint", ROOT / "constraints.txt", package)
            told = run(python, "-m", "gce", "--version", cwd=place)
            run(python, "-c", ADAPTED, cwd=place)
            run(python, "-m", "gce", "control", "rope", "--objects", "5", "--horizon", "10", "--out", "run", cwd=place)
            run(python, "-m", "gce", "report", "run", cwd=place)
            print(f"{package.name}: {told.strip()}, records, adapts, controls and reports")
        small = environment(place / "small")
        run(small, *pip, "--constraint", ROOT / "constraints.txt", *PLANNER)
        run(small, *pip, "--no-deps", wheel)
        told = run(small, "-c", PLANNED, cwd=place)
        found = run(small, *pip[:2], "list", "--format=freeze").splitlines()
        print(f"with {len(found)} packages: {told.strip()}")
        size = run("du", "-sm", place / "small", place / "full")
        print(re.sub(rf"{place}/", "", size).strip().replace("\n", " MB, ") + " MB")


if __name__ == "__main__":
    main()
