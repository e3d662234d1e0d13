"""`gce warm`."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gce.errors import InputError


@dataclass
class Warm:
    """Compile the kernels of plans ahead (extra `fast`), so that no plan waits for a compiler."""

    def run(self) -> None:
        from importlib import import_module
        from pkgutil import iter_modules

        from gce import dynamics
        from gce.dynamics.compiled import PIP, available

        if not available():
            raise InputError(f"numba is not installed, or GCE_FAST is 0, so there is nothing to compile; {PIP}")
        for module in iter_modules(dynamics.__path__):
            if module.name.endswith("_compiled"):
                begun = time.process_time()
                found = import_module(f"gce.dynamics.{module.name}")
                if hasattr(found, "warm"):
                    found.warm()
                    name = module.name.removesuffix("_compiled")
                    print(f"kernels of {name}: ready after {time.process_time() - begun:.1f} s")
