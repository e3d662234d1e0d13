"""`gce warm`."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gce.errors import InputError

SMALL = {"rope": 3}
"""Worlds whose models have kernels, and how many objects are enough to compile them."""


@dataclass
class Warm:
    """Compile the kernels of plans ahead (extra `fast`), so that no plan waits for a compiler."""

    def run(self) -> None:
        import numpy as np

        from gce.dynamics.compiled import PIP, available
        from gce.envs import world_named
        from gce.model.files import load_model, shipped
        from gce.planning.controller import dynamics_of
        from gce.system.system import adapt
        from gce.trajectory import Episode

        if not available():
            raise InputError(f"numba is not installed, or GCE_FAST is 0: there is nothing to compile; {PIP}")
        for world, objects in SMALL.items():
            begun, env = time.process_time(), world_named(world)(objects=objects)
            env.reset(seed=0)
            episode = Episode(env.graph, *env.run(env.excitation(np.random.default_rng(0), 8), 8))
            system = adapt(load_model(shipped(world)), [episode], measure=False)
            dynamics = dynamics_of(system, np.ones(episode.actions.shape[1:], bool))
            x0 = dynamics.reduced(system.state(episode.observations[0].astype(float), True))
            u = np.zeros((2, int(dynamics.controls.sum())))
            dynamics.path(x0, dynamics.rollout(x0, u), u)
            print(f"{world}: ready after {time.process_time() - begun:.1f} s")
