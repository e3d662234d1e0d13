"""A step of a message-passing model in plain arrays: the model's own numbers, and their derivatives."""

import numpy as np
import pytest
import torch

from gce.dynamics.message_kernel import MessageStep
from gce.model.model import nodes_first
from gce.model.step import Stepper
from gce.system.system import adapt
from small import system_episodes, untrained

pytestmark = pytest.mark.filterwarnings("ignore:.*samples for.*regressors")

CASES = {
    "rope": ("rope", {}),
    "rope, two observations and the previous action": ("rope", {"history": 2, "previous_action": True}),
    "rope, no net flows, three rounds": ("rope", {"conservative": False, "rounds": 3}),
    "rope, sharp weights": ("rope", {"potential_value": 0.3}),
    "rope, equal weights": ("rope", {"potential": "constant"}),
    "grid": ("grid", {}),
    "grid, the paper's form": ("grid", {"own_block": False}),
}


def prepared(case: str, precise: bool = True):
    """(system, its step, states [nodes, rows, c] a little off recorded ones)."""
    world, overrides = CASES[case]
    episodes = system_episodes(world)
    system = adapt(untrained(world, **overrides), episodes[1:], measure=False)
    model = system.model.requires_grad_(False)
    if precise:
        model.double()
    o = torch.as_tensor(episodes[0].observations[3:7], dtype=model.dtype)
    a = torch.as_tensor(episodes[0].actions[3:6], dtype=model.dtype) / model.action_std
    x = model.states(model.normalise(o), a)
    x = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    return system, MessageStep.of(model, system.operator, system.topology), nodes_first(x).contiguous()


def model_targets(system, x):
    """What the state adds to the free coordinates, by the model itself."""
    step = Stepper(system.model, [system.operator], system.topology, reproject=True)
    acting = torch.zeros(*x.shape[:2], system.model.config.num_inputs, dtype=x.dtype)
    return step._apply(step.regressors(x, step.encode(x), acting), step.from_state)


@pytest.mark.parametrize("case", CASES)
def test_targets_are_the_models(case):
    system, step, x = prepared(case)
    expected = model_targets(system, x).numpy()
    found = step.targets(x.numpy())
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("case", CASES)
def test_the_way_back_is_the_derivative(case):
    system, step, x = prepared(case)
    x.requires_grad_(True)
    y = model_targets(system, x)
    by_y = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    expected = torch.stack([torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in by_y]).numpy()
    kept = step.kept(x.detach().numpy())
    found = step.pull(kept, np.ascontiguousarray(by_y.numpy().transpose(3, 1, 0, 2)))
    assert np.abs(found.transpose(2, 1, 3, 0) - expected).max() <= 1e-8 * np.abs(expected).max()


def test_single_precision_stays_single():
    _, step, x = prepared("rope", precise=False)
    y = step.targets(x.numpy())
    assert y.dtype == np.float32
    by_y = np.ones((y.shape[2], y.shape[0], 1, y.shape[1]), np.float32)
    assert step.pull(step.kept(x.numpy()), by_y).dtype == np.float32


@pytest.mark.parametrize(("world", "overrides"), [("rope", {"potential": "mlp"}), ("soft", {"implicit": False})])
def test_models_it_does_not_know_are_left_to_torch(world, overrides):
    system = adapt(untrained(world, **overrides), system_episodes(world)[1:], measure=False)
    assert not MessageStep.fits(system.model, system.topology)
