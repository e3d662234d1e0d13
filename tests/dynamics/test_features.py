"""Dynamics in feature space: the model's linear rollout, through products whose adjoint is exact."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.control.matrix_free import solve_matrix_free
from gce.control.settle import Task, settle
from gce.control.solver import solve_qp
from gce.control.tracking import ControlLimits, DensePath, dense
from gce.dynamics.features import FeatureDynamics
from gce.errors import InputError
from gce.model.step import Stepper, rollout
from gce.system.system import adapt
from small import system_episodes, untrained

STEPS = 6
MODELS = {
    "grid": ("grid", {}),
    "the paper's form": ("grid", {"own_block": False}),
    "hom": ("grid", {"form": "hom"}),
    "heads": ("grid", {"potential": "attention"}),
    "kinematics and held nodes": ("rope", {}),
    "two observations": ("rope", {"history": 2, "previous_action": True}),
}


def small_dynamics(name="grid", **settings):
    """Dynamics of a small adapted system in double precision, a start, and controls."""
    world, overrides = MODELS[name]
    episodes = system_episodes(world)
    system = adapt(untrained(world, reproject=False, **overrides), episodes[1:])
    actuated = np.any([episode.actions.any((0, 2)) for episode in episodes], axis=0)
    dynamics = FeatureDynamics(system, actuated[:, None], dtype=np.float64, **settings)
    x = system.state(episodes[0].observations[0].astype(float), True)
    u = np.random.default_rng(0).uniform(-1, 1, (STEPS, int(actuated.sum())))
    return dynamics, x, u


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.*samples for.*regressors")
def test_along_its_weights_it_is_the_models_linear_rollout(name):
    dynamics, x, u = small_dynamics(name, frozen=False, opening=True)
    system = dynamics.system
    inputs = torch.zeros(STEPS, *dynamics.controls.shape)
    inputs[:, torch.as_tensor(dynamics.controls)] = torch.as_tensor(u, dtype=torch.float32)
    fresh = torch.zeros(STEPS, len(dynamics.controls), 1)
    fresh[0] = 1
    with torch.no_grad():
        features = system.model.features(x, system.topology)
        expected = rollout(Stepper(system.model, [system.operator], system.topology), features, inputs, fresh)
    found = dynamics.rollout(dynamics.reduced(x), np.stack([0 * u, u]))[1]
    assert np.abs(dynamics.lifted(found).numpy() - expected.numpy()).max() < 1e-4 * np.abs(expected.numpy()).max()


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.*samples for.*regressors")
def test_products_are_adjoint_and_follow_the_path(name, frozen):
    dynamics, x, u = small_dynamics(name, frozen=frozen, opening=True)
    x0 = dynamics.reduced(x)
    along = dynamics.rollout(x0, u)
    path = dynamics.path(x0, along, u)
    assert np.allclose(path.forward(u), along)
    w = np.random.default_rng(1).standard_normal(along.shape)
    assert (path.forward(u, affine=False) * w).sum() == pytest.approx((u * path.adjoint(w)).sum(), rel=1e-9)
    assert np.allclose(path.forward(u) - path.forward(0 * u), path.forward(u, affine=False))


@pytest.mark.filterwarnings("ignore:.*samples for.*regressors")
def test_products_are_those_of_the_matrices():
    dynamics, x, u = small_dynamics()
    x0 = dynamics.reduced(x)
    path = dynamics.path(x0, dynamics.rollout(x0, u), u)
    step, shape = path.steps[1], path.steps[1].c.shape
    A = np.stack([step.forward(column.reshape(shape)).reshape(-1) for column in np.eye(len(x0))], axis=1)
    (alpha,), (block,) = step.fields, step.blocks
    N = shape[0]
    assert np.allclose(A, np.kron(np.eye(N), block.own.T) + np.kron(alpha.toarray(), block.fields[0].T))
    M = len(u)
    full = DensePath(np.stack([A] * M), np.stack([path.B.toarray()] * M), np.stack([step.c.reshape(-1)] * M), x0)
    assert np.allclose(full.forward(u), path.forward(u))
    E = dense(dynamics.output_slopes(path.forward(u)), M)
    assert np.allclose((E @ path.forward(u)[..., None])[..., 0], dynamics.outputs(path.forward(u)))


@pytest.mark.filterwarnings("ignore:.*samples for.*regressors")
def test_a_plan_is_that_of_the_condensed_program():
    dynamics, x, u = small_dynamics()
    x0, p = dynamics.reduced(x), 2 * len(dynamics.controls)
    limits = ControlLimits(np.full_like(u, -0.3), np.full_like(u, 0.3))
    low, high = np.full(p, -0.1), np.full(p, 0.1)
    task = Task(np.full((STEPS, p), 0.2), np.ones((STEPS, p)), np.full_like(u, 0.1), limits, low, high, 3.0)
    found = settle(dynamics, task, x0, 0 * u, lambda problem, start: solve_matrix_free(problem, start, 1e-7))
    assert found.status == "solved"
    path = dynamics.path(x0, found.x, found.u)
    step, shape, M = path.steps[0], path.steps[0].c.shape, len(u)
    A = np.stack([step.forward(column.reshape(shape)).reshape(-1) for column in np.eye(len(x0))], axis=1)
    full = DensePath(np.stack([A] * M), np.stack([path.B.toarray()] * M), np.stack([step.c.reshape(-1)] * M), x0)
    problem = replace(task.along(dynamics, x0, found.x, found.u), path=full)
    best, _ = solve_qp(problem)
    assert found.cost == pytest.approx(problem.cost(best), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*samples for.*regressors")
def test_the_weights_settle_along_the_plan():
    dynamics, x, u = small_dynamics(frozen=False)
    x0, p = dynamics.reduced(x), 2 * len(dynamics.controls)
    limits = ControlLimits(np.full_like(u, -0.3), np.full_like(u, 0.3))
    task = Task(np.full((STEPS, p), 0.2), np.ones((STEPS, p)), np.full_like(u, 0.1), limits)
    found = settle(dynamics, task, x0, 0 * u, solve_matrix_free, iterations=10)
    still = task.cost(dynamics.outputs(dynamics.rollout(x0, 0 * u)), 0 * u)
    assert found.cost < still
    assert np.allclose(found.x, dynamics.rollout(x0, found.u))


def test_operators_of_single_nodes_are_refused():
    episodes = system_episodes("grid")
    system = adapt(untrained("grid", form="dense"), episodes[1:])
    with pytest.raises(InputError, match="shared blocks"):
        FeatureDynamics(system, np.ones((system.graph.num_nodes, 1), bool))
