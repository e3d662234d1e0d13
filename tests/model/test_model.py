import numpy as np
import pytest
import torch

from gce.graphs.topology import Topology
from gce.model.config import configured
from gce.model.model import Model, nodes_first
from gce.model.step import Stepper, rollout
from gce.operators import PAPER_FORMS
from gce.training.batches import SystemData
from small import close, recorded, untrained

WORLDS = ["rope", "soft", "grid"]


def system_data(model, world: str, group: int) -> SystemData:
    data = recorded(world)
    return SystemData(model, [data[int(k)] for k in data.group(group).episodes])


def fresh_of(system: SystemData, steps: int) -> torch.Tensor:
    fresh = torch.zeros(len(system), steps, system.graph.num_nodes, 1)
    fresh[:, 0] = 1
    return fresh


def fit_and_roll(model, states, inputs, fresh, topology, steps: int = 3) -> torch.Tensor:
    """Operators fitted on some states, and the steps they predict from the first."""
    with torch.no_grad():
        psi = model.features(states, topology)
        X = model.regressors(psi[:, :-1], inputs, topology, fresh)
        Y = model.targets(states[:, :-1], states[:, 1:], psi[:, 1:], topology)
        operators = [model.fit(sums, topology) for sums in model.sums(X, Y, states[:, :-1], topology)]
        step = Stepper(model, operators, topology)
        return rollout(step, psi[:, 0], inputs[:, :steps], fresh[:, :steps])


@pytest.mark.parametrize(("world", "form"), [("rope", "hom_mean"), ("soft", "hom_mean"), ("grid", "hom")])
def test_joining_an_unrelated_graph_does_not_change_predictions(world, form):
    model = untrained(world, form=form).double()
    parts = [system_data(model, world, group) for group in (0, 1)]
    alone = [
        fit_and_roll(model, p.states.double(), p.inputs.double(), fresh_of(p, p.steps), Topology.of(p.graph))
        for p in parts
    ]
    joined = fit_and_roll(
        model,
        torch.cat([p.states for p in parts], dim=2).double(),
        torch.cat([p.inputs for p in parts], dim=2).double(),
        torch.cat([fresh_of(p, p.steps) for p in parts], dim=2),
        Topology.of([p.graph for p in parts]),
    )
    assert close(joined, torch.cat(alone, dim=2), 1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_the_true_increments_lead_along_the_recording(world):
    model = untrained(world)
    system = system_data(model, world, 0)
    x, following = nodes_first(system.states[:, :-1]), nodes_first(system.states[:, 1:])
    increments = (following - x)[..., model.free]
    assert close(model.way_back(system.topology)(x, increments, nodes_first(system.inputs)), following, 1e-4)


def test_a_fresh_step_knows_only_the_inputs():
    model = untrained("rope")
    system = system_data(model, "rope", 0)
    psi = model.features(system.states[0], system.topology)[:-1]
    inputs, nodes = system.inputs[0], system.graph.num_nodes
    fresh = model.regressors(psi, inputs, system.topology, torch.ones(len(psi), nodes, 1))
    going = model.regressors(psi, inputs, system.topology, torch.zeros(len(psi), nodes, 1))
    state, constants = model.form.num_state_regressors(system.topology), model.form.num_constants(system.topology)
    assert not fresh[..., :state].any()
    assert not fresh[..., fresh.shape[-1] - constants :].any()
    assert torch.equal(fresh[..., state:-constants], going[..., state:-constants])
    assert torch.equal(going, model.regressors(psi, inputs, system.topology))


@pytest.mark.parametrize("world", ["soft", "swim"])
def test_a_late_action_acts_only_through_the_state(world):
    model = untrained(world)
    system = system_data(model, world, 0)
    psi = model.features(system.states[0, :-1], system.topology)
    acted = model.regressors(psi, system.inputs[0], system.topology)
    assert torch.equal(acted, model.regressors(psi, 0 * system.inputs[0], system.topology))


def test_states_hold_what_came_before():
    model = untrained("grid", history=2, previous_action=True)
    data = recorded("grid")
    system = SystemData(model, [data[0]])
    d, x = model.config.num_observations, system.states[0]
    assert torch.equal(x[1:, :, d : 2 * d], x[:-1, :, :d])
    assert torch.equal(x[0, :, d : 2 * d], x[0, :, :d])
    assert torch.equal(x[1:, :, 2 * d :], system.inputs[0])
    assert not x[0, :, 2 * d :].any()


def test_linear_rollouts_keep_the_predicted_features():
    model = untrained("grid", node_constants=0.0)
    system = system_data(model, "grid", 0)
    states, topology = system.states, system.topology
    psi = model.features(states, topology)
    X = model.regressors(psi[:, :-1], system.inputs, topology)
    (sums,) = model.sums(
        X, model.targets(states[:, :-1], states[:, 1:], psi[:, 1:], topology), states[:, :-1], topology
    )
    operator = model.fit(sums, topology)
    state, following = Stepper(model, [operator], topology, reproject=False)(psi[:, 0], system.inputs[:, 0], None)
    expected = operator.apply(nodes_first(X[:, 0])).transpose(0, 1)[..., len(model.free) :]
    assert close(following[..., model.config.num_state :], expected, 1e-6)
    again, reprojected = Stepper(model, [operator], topology)(psi[:, 0], system.inputs[:, 0], None)
    assert torch.equal(state, again)
    assert torch.equal(reprojected, model.features(state, topology))


def test_another_form_keeps_encoder_and_potential():
    model = untrained("rope")
    for name in PAPER_FORMS:
        other = model.with_form(name)
        assert other.form.name == name
        assert all(torch.equal(v, other.state_dict()[k]) for k, v in model.state_dict().items())


def test_held_targets_have_the_fit_of_the_nodes_that_move():
    """What the rail holds says nothing of how free masses fall: a fit on the free masses' rows is the same."""
    model = untrained("rope")
    system = system_data(model, "rope", 0)
    topology, states = system.topology, system.states
    psi = model.features(states, topology)
    X = model.regressors(psi[:, :-1], system.inputs, topology, fresh_of(system, system.steps))
    Y = model.targets(states[:, :-1], states[:, 1:], psi[:, 1:], topology)
    target = model.held[0].nonzero().item()
    (sums,) = model.sums(X, Y, states[:, :-1], topology)
    found = model.fit(sums, topology, ridge=0.0).coefficients[:, target]
    rows, falls = X[:, :, 1:].flatten(0, 2).double(), Y[:, :, 1:, target].flatten().double()
    expected = np.linalg.lstsq(rows.detach().numpy(), falls.detach().numpy(), rcond=None)[0]
    assert close(rows @ found, rows @ torch.as_tensor(expected), 1e-4)


@pytest.mark.parametrize("form", ["hom_mean", "dense"])
def test_the_residual_of_a_target_is_that_of_the_nodes_where_it_moves(form):
    model = untrained("rope", form=form)
    system = system_data(model, "rope", 0)
    topology, states = system.topology, system.states
    with torch.no_grad():
        psi = model.features(states, topology)
        X = model.regressors(psi[:, :-1], system.inputs, topology, fresh_of(system, system.steps))
        Y = model.targets(states[:, :-1], states[:, 1:], psi[:, 1:], topology)
        (sums,) = model.sums(X, Y, states[:, :-1], topology)
        operator = model.fit(sums, topology)
        left = (nodes_first(Y) - operator.apply(nodes_first(X).double())).square().mean(1)
    moves = (~model.held[topology.node_type]).double()
    expected = (left * moves) if operator.residual.ndim == 3 else (left * moves).sum(0) / moves.sum(0)
    assert moves.min() == 0
    assert close(torch.diagonal(operator.residual, dim1=-2, dim2=-1), expected, 1e-6)
    spectrum = torch.linalg.eigvalsh(operator.residual)
    assert bool((spectrum >= -1e-12 * spectrum.max()).all())


@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("world", ["rope", "soft"])
def test_moving_the_whole_system_changes_no_regressor(world, history):
    model = untrained(world, history=history, implicit=False, conservative=False).double()
    system = system_data(model, world, 0)
    x, inputs = system.states[0, 3].double(), system.inputs[0, 3].double()
    places = [c for c in range(x.shape[-1]) if c not in model.features.regressed_state]
    assert len(places) == 2 * history * len(model.config.points)
    shift = torch.zeros_like(x)
    along = torch.tensor([0.7, -0.4], dtype=x.dtype).repeat(len(places) // 2)
    shift[:, places] = along / model.observation_std[[c % model.config.num_observations for c in places]]

    def regressors(x: torch.Tensor) -> torch.Tensor:
        return model.regressors(model.features(x, system.topology), inputs, system.topology)

    assert close(regressors(x + shift), regressors(x), 1e-9)


def test_sizes_follow_from_the_configuration():
    sizes = {"num_observations": 3, "num_actions": 2, "num_relations": 1, "num_node_types": 1, "num_exogenous": 4}
    config = configured({**sizes, "history": 2, "previous_action": True, "features": 5, "linear_features": 6})
    features = Model(config).features
    assert (config.num_state, features.num_phi, config.num_inputs) == (8, 11, 6)
    assert features.regressed_state == list(range(8))


@pytest.mark.parametrize(
    ("world", "form", "constants"),
    [("rope", "hom_mean", 0.0), ("rope", "dense", 0.0), ("soft", "hom_mean", 0.0), ("grid", "hom_mean", 3.0)],
)
def test_systems_fitted_at_once_are_as_alone(world, form, constants):
    """On one topology: here two halves of a system's episodes stand for two systems."""
    model = untrained(world, form=form, node_constants=constants)
    system = system_data(model, world, 0)
    topology, half = system.topology, len(system) // 2
    with torch.no_grad():
        psi = model.features(system.states, topology)
        X = model.regressors(psi[:, :-1], system.inputs, topology, fresh_of(system, system.steps))
        Y = model.targets(system.states[:, :-1], system.states[:, 1:], psi[:, 1:], topology)
        rows = (X, Y, system.states[:, :-1])
        parts = [[row[:half] for row in rows], [row[half : 2 * half] for row in rows]]
        together = model.fit_all(*(torch.stack(part) for part in zip(*parts, strict=True)), topology)
        alone = [model.fit(model.sums(x, y, s, topology)[0], topology) for x, y, s in parts]
    for one, other in zip(together, alone, strict=True):
        assert one.rows == other.rows
        for name in ("coefficients", "residual", "system", "condition"):
            assert close(getattr(one, name), getattr(other, name), 1e-7)
        assert (one.constants is None) == (constants == 0.0)
        assert one.constants is None or close(one.constants, other.constants, 1e-7)
        assert one.channels is None or close(one.channels, other.channels, 1e-6)
    assert not close(together[0].coefficients, together[1].coefficients, 1e-2)
