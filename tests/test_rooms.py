"""Imports run one way."""

import ast
import sys
from pathlib import Path

import pytest

import gce

SOURCE = Path(gce.__file__).parent

MAY_IMPORT = {
    "__init__": set(),
    "__main__": {"cli"},
    "errors": set(),
    "progress": set(),
    "command": {"errors"},
    "graph": {"errors"},
    "trajectory": {"errors", "graph"},
    "importing": {"errors", "graph", "trajectory"},
    "envs": {"errors", "graph", "trajectory"},
    "recording": {"errors", "envs", "trajectory"},
    "replay": {"errors", "envs", "trajectory"},
    "plots": {"errors", "envs", "graph", "trajectory"},
    "segments": set(),
    "topology": {"graph", "errors", "segments"},
    "units": {"topology"},
    "inputs": {"topology"},
    "encoder": {"inputs", "topology"},
    "network": {"inputs", "topology"},
    "implicit": {"inputs", "ridge", "topology"},
    "potentials": {"errors", "topology"},
    "additive": set(),
    "ridge": {"additive"},
    "metrics": set(),
    "rollout": set(),
    "smoothing": set(),
    "operators": {"errors", "potentials", "ridge", "topology"},
    "config": {"errors", "inputs", "network"},
    "decoder": {"topology"},
    "regression": {"additive", "operators", "ridge", "topology"},
    "embedding": {
        "config",
        "decoder",
        "encoder",
        "implicit",
        "inputs",
        "memory",
        "network",
        "operators",
        "potentials",
        "topology",
        "units",
    },
    "stepping": {"embedding", "operators", "topology"},
    "model": {"embedding", "operators", "regression", "stepping", "topology"},
    "stability": {"errors", "model", "operators"},
    "colour": {"operators"},
    "memory": {"colour", "ridge"},
    "remembering": {
        "adaptation",
        "colour",
        "memory",
        "model",
        "progress",
        "regression",
        "ridge",
        "topology",
        "trajectory",
    },
    "adaptation": {
        "additive",
        "colour",
        "errors",
        "graph",
        "model",
        "operators",
        "regression",
        "rollout",
        "smoothing",
        "topology",
        "trajectory",
    },
    "uncertainty": {"adaptation", "graph", "model", "operators", "topology"},
    "system": {
        "adaptation",
        "errors",
        "graph",
        "model",
        "operators",
        "rollout",
        "topology",
        "trajectory",
        "uncertainty",
    },
    "checkpoint": {"errors", "graph"},
    "implicit_slopes": {"implicit", "topology"},
    "control": {"errors"},
    "anchored_dynamics": {"control", "errors", "message_step", "system", "topology"},
    "oracles": {"control"},
    "feature_dynamics": {"control", "errors", "operators", "potentials", "system", "topology"},
    "body_step": {"implicit", "topology"},
    "state_dynamics": {"control", "rollout", "system"},
    "body_dynamics": {"body_step", "control", "implicit_slopes", "state_dynamics"},
    "wiring": set(),
    "message_step": {"encoder", "inputs", "model", "operators", "potentials", "topology", "wiring"},
    "message_dynamics": {"control", "message_step", "state_dynamics", "system"},
    "planning": {
        "anchored_dynamics",
        "body_dynamics",
        "control",
        "errors",
        "feature_dynamics",
        "message_dynamics",
        "message_step",
        "state_dynamics",
        "system",
    },
    "plans": {"control", "errors", "trajectory"},
    "controller": {"control", "errors", "planning", "plans", "state_dynamics", "system"},
    "simulator_oracle": {"control", "envs"},
    "filtering": {
        "anchored_dynamics",
        "adaptation",
        "control",
        "errors",
        "planning",
        "state_dynamics",
        "system",
        "trajectory",
        "uncertainty",
    },
    "closed_loop": {"control", "envs", "errors", "metrics", "plans"},
    "batches": {"__init__", "adaptation", "checkpoint", "config", "model", "topology", "trajectory"},
    "preparation": {"batches", "config", "model", "trajectory"},
    "losses": {"batches", "config", "embedding", "model", "operators", "rollout", "topology"},
    "training": {
        "__init__",
        "batches",
        "checkpoint",
        "config",
        "errors",
        "losses",
        "metrics",
        "model",
        "system",
        "trajectory",
    },
    "presets": {"config", "errors", "preparation", "trajectory"},
    "learning": {
        "batches",
        "config",
        "errors",
        "model",
        "preparation",
        "presets",
        "progress",
        "remembering",
        "training",
        "trajectory",
    },
    "files": {
        "__init__",
        "adaptation",
        "uncertainty",
        "colour",
        "config",
        "errors",
        "graph",
        "model",
        "regression",
        "ridge",
        "system",
    },
    "evaluation": {"metrics", "model", "system", "trajectory"},
    "charts": {"closed_loop", "errors", "evaluation"},
    "inspection": {
        "adaptation",
        "embedding",
        "message_dynamics",
        "message_step",
        "metrics",
        "operators",
        "potentials",
        "stability",
        "system",
        "trajectory",
        "uncertainty",
    },
}
MAY_IMPORT["pages"] = {"envs"}
MAY_IMPORT["report"] = {"__init__", "closed_loop", "control", "envs", "errors", "inspection", "pages", "plans"} | {
    "system",
    "trajectory",
}
MAY_IMPORT["baselines"] = {
    "__init__",
    "checkpoint",
    "control",
    "plans",
    "encoder",
    "errors",
    "graph",
    "inputs",
} | {
    "command",
    "learning",
    *("metrics", "operators", "presets", "progress", "ridge", "topology", "training", "trajectory", "units"),
}
MAY_IMPORT["interop"] = {"errors", "files", "graph", "learning", "preparation", "presets", "system", "trajectory"}
MAY_IMPORT["explorer"] = {"closed_loop", "controller", "envs", "errors", "files", "inspection", "model", "pages"} | {
    "plans",
    "system",
    "trajectory",
}
MAY_IMPORT["experiments"] = set(MAY_IMPORT)
MAY_IMPORT["reproduce"] = set(MAY_IMPORT)
MAY_IMPORT["cli"] = set(MAY_IMPORT)


def rooms_imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gce":
            names.add(node.module.split(".")[1] if "." in node.module else "__init__")
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gce.")}
    return names


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: str(f.relative_to(SOURCE)))
def test_a_room_imports_only_what_it_may(file):
    relative = file.relative_to(SOURCE)
    room = relative.parts[0].removesuffix(".py")
    assert rooms_imported(file) <= MAY_IMPORT[room] | {room}


def test_help_imports_nothing_heavy():
    import subprocess

    heavy = ("numpy", "torch", "h5py", "gymnasium")
    code = f"import sys; import gce, gce.cli; print([m for m in {heavy} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
