"""Run all benchmarks, print them and write bench.json."""

import json
import platform
from pathlib import Path

import gce
from bench.grid import bench_grid
from bench.message_passing import bench_message_passing
from bench.planning import GROWTH, bench_planning
from bench.recording import LIMITS, bench_recording
from bench.training import bench_training


def main() -> None:
    results: dict[str, object] = {"version": gce.__version__, "python": platform.python_version()}
    results["recording"] = recording = {world: bench_recording(world) for world in LIMITS}
    for world, figures in recording.items():
        print(f"recording {world}: {figures['ratio']:.1f} bare steps a step (at most {figures['limit']:.0f})")
    results["grid"] = grid = bench_grid()
    print(f"grid: {grid['batch_node_steps_per_second']:,.0f} node-steps a second (at least 1,000,000)")
    results["training"] = training = bench_training()
    for kind in ("linear", "reprojected"):
        seconds, share = training[f"{kind}_seconds"], training[f"{kind}_share_of_peer"]
        print(f"training iteration, {kind}: {seconds:.2f} s CPU, {share:.2f} of the peer's (at most 0.10)")
    results["message_passing"] = rounds = bench_message_passing()
    for case, figures in rounds.items():
        print(f"messages, {case}: PyTorch Geometric takes {figures['ratio']:.2f} of our CPU time")
    results["planning"] = planning = bench_planning()
    for name in ("rope", "soft"):
        p = planning[name]
        print(
            f"plan, {name}: {p['seconds']:.3f} s CPU (asked: {p['most_seconds']} s) in {p['turns']:.1f} turns, "
            f"cvxpy takes {p['ratio']:.0f} times as long"
        )
    for name in ("grid of 150", "lattice of 1,000", "lattice of 10,000"):
        p = planning[name]
        print(f"plan, {name}: {p['seconds']:.2f} s CPU, {p['megabytes']:.0f} MB, {p['status']}")
    print(f"plan, 1,000 to 10,000 nodes: {planning['growth']['ratio']:.1f} times as long (at most {GROWTH})")
    Path("bench.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
