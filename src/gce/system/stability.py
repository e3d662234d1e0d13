"""What can be said of the stability of a fitted operator that shares its blocks over all nodes.

In feature space, with weights alpha whose rows add up to one, psi' = (I (x) S + alpha (x) M) psi + inputs. With
frozen weights the spectral radius is the largest rho(S + mu M) over the eigenvalues mu of alpha; these lie in the unit
disk, and rho is subharmonic in mu, so for any graph and any weights

    radius = max over |mu| = 1 of rho(S + mu M)

bounds it. Under weights that change from step to step it suffices that |S| + |M| <= 1 in one norm. Both are of rollouts
that stay in feature space; a reprojected rollout is nonlinear and is judged by running it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gce.errors import InputError
from gce.model.model import Model
from gce.operators import Operator

ANGLES = 181


@dataclass(frozen=True)
class Certificate:
    """radius: of the spectrum on the worst graph, weights frozen; norm: |S| + |M|, enough under changing weights.

    A free body is a double integrator with radius 1, so `bounded` allows rounding beyond 1.
    """

    radius: float
    norm: float

    @property
    def bounded(self) -> bool:
        return self.radius <= 1 + 1e-6


def blocks(model: Model, operator: Operator) -> tuple[Float[Tensor, "f f"], Float[Tensor, "f f"]]:
    """(S, M) of psi_i' = S psi_i + M sum_j alpha_ij psi_j + ..., known coordinates included, ties left out."""
    form, c = operator.form, model.config
    features = model.features
    parts = form.blocks(operator.coefficients.double(), features.width)
    if parts is None or not form.weighted or len(parts.fields) != 1:
        raise InputError(
            f"a certificate needs shared blocks and one mean field (hom_mean), the operator is {form.name!r} with "
            f"{form.shape.heads}; adapt with hom_mean, and a potential with one head"
        )
    if features.planned_in_features:
        return parts.own.T, parts.fields[0].T
    if not features.selects:
        raise InputError("a certificate needs a model whose features hold the observation, this one decodes it")
    if not features.linear:
        raise InputError(
            f"a certificate needs an operator on features alone; with features of the kind {features.name!r} it only "
            "corrects what these do"
        )
    f, n = c.num_state + features.num_phi, c.num_state
    acting = [*features.regressed_state, *range(n, f)]
    width, own, field = len(acting), parts.own, parts.fields[0]

    keep, spread = (part.mT.contiguous() for part in model.feature_motion())
    select = torch.zeros(width, f, dtype=torch.float64)
    select[range(width), acting] = 1
    return keep + spread @ own.T @ select, spread @ field.T @ select


def certificate(model: Model, operator: Operator) -> Certificate:
    S, M = blocks(model, operator)
    angle = torch.linspace(0, torch.pi, ANGLES, dtype=torch.float64)
    family = S + torch.polar(torch.ones_like(angle), angle)[:, None, None] * M.to(torch.complex128)
    radius = torch.linalg.eigvals(family).abs().max()
    norm = torch.linalg.matrix_norm(S, 2) + torch.linalg.matrix_norm(M, 2)
    return Certificate(float(radius), float(norm))
