"""Solvers of the quadratic problem of `tracking`, as objects that are chosen by name or given.

A solver of your own derives from `Solver`, has a `name` and a `solve`, and is made known by `register_solver`:

    @register_solver
    class Fine(Solver):
        name = "fine"

        def solve(self, problem, start):
            return solve_matrix_free(problem, start, tolerance=1e-7)

`settle` calls it at each turn of a plan, on the problem along the present path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError

from gce.control.lqr import lqr, roll
from gce.control.matrix_free import solve_matrix_free
from gce.control.qp import solve_qp
from gce.control.tracking import DensePath, Status, Tracking, dense
from gce.errors import InputError
from gce.names import register, registered

Controls = Float[np.ndarray, "M n"]

LARGE, LOOSE = 1500, 1e-4
"""Unknowns beyond which a dense quadratic program is slower than products alone; to what tolerance these then go."""


class Solver(ABC):
    """Solves quadratic problems; one that it is not made for it refuses with an `InputError`."""

    name: ClassVar[str]

    @abstractmethod
    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        """(controls, status); start: controls to begin from. The controls keep to the limits whatever the status."""


SOLVERS: dict[str, type[Solver]] = {}
"""The solvers by name; each is made without arguments where it is chosen by name."""


def register_solver(cls: Any) -> Any:
    """Make a solver known by its name, as a decorator or a call; `del SOLVERS[name]` takes it out again."""
    return register(SOLVERS, cls, Solver)


def chosen_solver(choice: object) -> Solver:
    """The solver of a name, or the one given."""
    if isinstance(choice, str):
        return registered(SOLVERS, choice, "solver", "gce.control.solver.register_solver")()
    if not isinstance(choice, Solver):
        raise InputError(
            f"{choice!r} is not a solver; give one of {', '.join(SOLVERS)}, or an object of a class derived from "
            "gce.control.solver.Solver"
        )
    return choice


@register_solver
@dataclass(frozen=True)
class Riccati(Solver):
    """Exact and fastest, for problems without limits (`lqr`)."""

    name = "riccati"

    @staticmethod
    def limits(problem: Tracking) -> list[str]:
        """The limits of a problem that this solver does not keep to."""
        limits = problem.limits
        bounded = bool(np.isfinite(limits.low).any() or np.isfinite(limits.high).any())
        kinds = {
            "bounds": bounded,
            "limits on the rate": limits.rate is not None,
            "soft limits": problem.soft is not None,
        }
        return [kind for kind, given in kinds.items() if given]

    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        path = problem.path
        if given := self.limits(problem):
            raise InputError(
                f"the solver 'riccati' keeps to no limits, and this problem has {', '.join(given)}; leave these out, "
                "or choose the solver 'suitable'"
            )
        if not isinstance(path, DensePath):
            raise InputError(
                "the solver 'riccati' needs dynamics as matrices, these are products; choose 'matrix_free'"
            )
        shift = problem.v / np.where(problem.w > 0, problem.w, 1)
        moved = replace(path, c=path.c + np.einsum("tsn,tn->ts", path.B, shift))
        try:
            gains = lqr(moved, dense(problem.E, len(start)), problem.e, problem.w)
        except LinAlgError:  # controls that cost nothing and do nothing
            return start, Status.NUMERICAL_TROUBLE
        return roll(moved, gains)[0] + shift, Status.SOLVED


@register_solver
@dataclass(frozen=True)
class Condensed(Solver):
    """The condensed program by an interior-point method (`qp`); tolerance: of PIQP."""

    name = "condensed"
    tolerance: float = 1e-9

    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        return solve_qp(problem, self.tolerance)


@register_solver
@dataclass(frozen=True)
class MatrixFree(Solver):
    """Through products alone, for graphs of any size (`matrix_free`).

    tolerance: of the projected gradient; well below that of the plan, or its last turns find no better one.
    """

    name = "matrix_free"
    tolerance: float = 1e-6

    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        return solve_matrix_free(problem, start, self.tolerance)


@register_solver
@dataclass(frozen=True)
class Suitable(Solver):
    """The one that suits a problem: Riccati without limits, products alone where it is large, else condensed."""

    name = "suitable"
    large: int = LARGE

    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        if not isinstance(problem.path, DensePath):
            return MatrixFree(LOOSE).solve(problem, start)
        if not Riccati.limits(problem):
            return Riccati().solve(problem, start)
        return (MatrixFree(LOOSE) if start.size > self.large else Condensed()).solve(problem, start)
