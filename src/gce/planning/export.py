"""A plan with its feedback as one C99 file: no library, no allocation, for a controller without Python.

    a_t = clip(a*_t + G_t (z_t - z*_t)),   z = (observation, the one before, the action before)

a*, z*: the plan and its prediction. G: the gains of the quadratic problem along it without limits (Riccati), in terms
of what is measured; then the bounds, and how fast actions may change, hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError

from gce.control.solver import lqr
from gce.control.tracking import DensePath, dense
from gce.errors import InputError
from gce.files import write_text
from gce.planning.controller import Controller, Plan, dynamics_of, efforts, task_of

Array = np.ndarray
AFFINE = 1e-6


@dataclass(frozen=True)
class Feedback:
    """What the file holds, physical units; z in the order above, actions of the actuated nodes alone."""

    nominal: Float[Array, "M n"]
    expected: Float[Array, "M z"]
    gains: Float[Array, "M n z"]
    low: Float[Array, " n"]
    high: Float[Array, " n"]
    rate: Float[Array, " n"]

    def action(self, step: int, z: Float[Array, " z"], before: Float[Array, " n"]) -> Float[Array, " n"]:
        """The controls of a step; before: those of the last one."""
        u = self.nominal[step] + self.gains[step] @ (z - self.expected[step])
        if step:
            u = np.clip(u, before - self.rate, before + self.rate)
        return np.clip(u, self.low, self.high)

    @classmethod
    def of(cls, controller: Controller, plan: Plan) -> Feedback:
        p, system, model = controller.problem, controller.system, controller.system.model
        if p.exogenous is not None:
            raise InputError("inputs known in advance cannot be exported: they enter no gain; leave them out")
        known = dynamics_of(system, p.controls, False, None, p.on, controller.frozen)
        scale = np.broadcast_to(model.arrays.action_std, p.low.shape)[p.controls]
        u, o = plan.actions[:, p.controls] / scale, plan.observations
        n, size, M = u.shape[1], o[0].size, len(u)

        def state(z: Array) -> Array:
            seen, last, acted = z[:size], z[size : 2 * size], np.zeros(p.low.shape)
            acted[p.controls] = z[2 * size :]
            before = last.reshape(o[0].shape), acted
            return known.reduced(system.state(seen.reshape(o[0].shape), False, before))

        acted = np.concatenate([np.zeros((1, n)), plan.actions[:-1][:, p.controls]])
        z = np.concatenate([o[:-1].reshape(M, -1), o[np.maximum(np.arange(M) - 1, 0)].reshape(M, -1), acted], axis=1)
        x0 = state(z[0])
        unit = np.concatenate([np.broadcast_to(model.arrays.observation_std, o[0].shape).reshape(-1)] * 2 + [scale])
        by = np.stack([(state(z[0] + step) - x0) / unit[k] for k, step in enumerate(np.diag(unit))], axis=1)
        twice = state(z[0] + 2 * unit) - x0
        if np.abs(twice - 2 * by @ unit).max() > AFFINE * max(1.0, float(np.abs(twice).max())):
            raise InputError(
                f"the state of a model of the method {model.method} is not linear in what is measured, so its feedback "
                "cannot be exported; export a plan of a model that plans in observations"
            )
        opened = dynamics_of(system, p.controls, True, None, p.on, controller.frozen)
        x0 = opened.reduced(system.state(o[0], True))
        dynamics = opened.frozen_at(x0) if controller.frozen else opened
        x = dynamics.rollout(x0, u)
        problem = task_of(model, known, p, 0, np.zeros(n)).along(dynamics, x0, x, u)
        path = problem.path
        if not isinstance(path, DensePath):
            raise InputError("dynamics of large graphs are products, not matrices: their gains cannot be exported")
        w = np.maximum(problem.w, efforts(1e-6, p, model.arrays.action_std))
        try:
            K = lqr(path, dense(problem.E, M), problem.e, w).K[..., :-1]
        except LinAlgError:
            raise InputError("the plan has no gains: actions cost nothing; give an action cost above zero") from None
        rate = np.full(n, np.inf) if p.rate is None else p.rate[p.controls]
        gains = -scale[:, None] * (K @ by)
        return cls(plan.actions[:, p.controls], z, gains, p.low[p.controls], p.high[p.controls], rate)

    def text(self, size: int) -> str:
        """The C file; size: numbers of an observation."""
        M, n, Z = self.gains.shape
        tables = {
            f"nominal[{M}][{n}]": self.nominal,
            f"expected[{M}][{Z}]": self.expected,
            f"gains[{M}][{n}][{Z}]": self.gains,
            f"low[{n}]": self.low,
            f"high[{n}]": self.high,
            f"rate[{n}]": self.rate,
        }
        rows = [f"static const double {name} = {_table(values)};" for name, values in tables.items()]
        return SOURCE.format(M=M, n=n, size=size, Z=Z, tables="\n".join(rows))


def write_c(controller: Controller, plan: Plan, path: Path) -> None:
    """The plan and its feedback as a C99 file."""
    write_text(path, Feedback.of(controller, plan).text(plan.observations[0].size))


def _table(values: Any) -> str:
    if np.ndim(values):
        return "{" + ",\n".join(_table(part) for part in values) + "}"
    return "INFINITY" if values == np.inf else "-INFINITY" if values == -np.inf else float(values).hex()


SOURCE = """/* A plan and its feedback, written by gce. C99; no allocation, no state.

   void gce_action(int step, const double *seen, const double *before, const double *acted, double *action);

   step: 0 to GCE_STEPS - 1. seen, before: the observation now and one step earlier, GCE_SEEN numbers each, a node after
   another (at step 0 the same twice). acted: the action of the step before, GCE_CONTROLS numbers, the actuated nodes'
   (at step 0 zeros). action: what to do now. */
#include <math.h>

#define GCE_STEPS {M}
#define GCE_SEEN {size}
#define GCE_CONTROLS {n}

{tables}

void gce_action(int step, const double *seen, const double *before, const double *acted, double *action);

void gce_action(int step, const double *seen, const double *before, const double *acted, double *action)
{{
    for (int i = 0; i < GCE_CONTROLS; i++) {{
        double u = nominal[step][i];
        for (int k = 0; k < {Z}; k++) {{
            double z = k < GCE_SEEN ? seen[k] : k < 2 * GCE_SEEN ? before[k - GCE_SEEN] : acted[k - 2 * GCE_SEEN];
            u += gains[step][i][k] * (z - expected[step][k]);
        }}
        if (step > 0) {{
            u = fmin(fmax(u, acted[i] - rate[i]), acted[i] + rate[i]);
        }}
        action[i] = fmin(fmax(u, low[i]), high[i]);
    }}
}}
"""
