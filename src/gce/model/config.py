"""What decides a model's shape, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from gce.errors import InputError
from gce.features.inputs import Points, place_coordinates
from gce.features.network import num_products

DECODERS = ("selection", "message_passing")


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides a model's shape; JSON values.

    kinematics: (position, velocity) pairs of coordinates with v_t = (p_t - p_{t-1}) / dt.
    fresh_start: whether the first step of an episode is free of all but the action (a simulator that has not
        computed any force yet); rest_start: whether episodes open with velocities of zero.
    history: 1 or 2 observations in the state; previous_action: whether the state holds it; late_action: whether an
        action shows only through it, one step late.
    points: the coordinates (x, y, vx, vy) of each point of a node, for observations that are points in the plane.
    conservative: features are net flows. implicit: vector channels of stiffly coupled points stand beside phi, and the
        operator explains what they leave; drag: with channels of a medium's resistance. With conservative or implicit
        features the operator acts on phi alone, not on x.
    decoder: how observations come back from features. "selection": they are among them; "message_passing": the operator
        acts on phi alone, which knows where things are, and a decoder finds the observation.
    reproject: whether rollouts take the features of each predicted state anew; otherwise they stay in feature space.
    network: nodes of a network whose lines conduct (the first edge attribute says how well): features are products,
        and what acts on a node spreads over the network (`network`); the form is "local".
    node_constants: whether each node has a constant of its own beside what all share, and how strongly it is drawn to
        zero, as a number of rows; 0 for none.
    memory: how many rows the systems trained on count for in the regression of a new one (`memory`); 0 for none.
    """

    num_observations: int
    num_actions: int
    num_relations: int
    num_node_types: int
    num_node_attributes: int = 0
    num_edge_attributes: int = 0
    num_exogenous: int = 0
    world: str | None = None
    dt: float = 1.0
    kinematics: tuple[tuple[int, int], ...] = ()
    fresh_start: bool = False
    rest_start: bool = False
    history: int = 1
    previous_action: bool = False
    late_action: bool = False
    points: Points = ()
    conservative: bool = False
    implicit: bool = False
    drag: bool = False
    form: str = "hom_mean"
    own_block: bool = True
    potential: str = "gaussian"
    potential_value: float = 2.0
    potential_learned: bool = True
    features: int = 32
    linear_features: int = 8
    node_width: int = 64
    edge_width: int = 32
    rounds: int = 2
    bound: float = 5.0
    ridge: float = 1e-4
    decoder: str = "selection"
    reproject: bool = True
    node_constants: float = 0.0
    network: bool = False
    memory: float = 0.0

    def __post_init__(self) -> None:
        if self.network and (self.num_edge_attributes == 0 or self.points):
            raise InputError("a network's lines need a first attribute, how well they conduct, and nodes no place")
        if self.network != (self.form == "local"):
            raise InputError("the form 'local' is for network features, and these need it; choose both or neither")
        if self.memory and (not self.network or self.node_constants):
            raise InputError(
                f"a memory (here {self.memory:g}) is for network features without constants of single nodes; choose "
                "network=True and node_constants=0, or memory=0"
            )
        if self.decoder not in DECODERS:
            raise InputError(f"there is no decoder {self.decoder!r}; the decoders are {', '.join(DECODERS)}")
        if not self.selects and (self.conservative or self.implicit):
            raise InputError(
                "conservative and implicit features do not say where things are, so no decoder can; choose "
                "decoder='selection', or features that are neither"
            )

    @property
    def selects(self) -> bool:
        """Whether the observation is among the features."""
        return self.decoder == "selection"

    @property
    def num_state(self) -> int:
        return self.history * self.num_observations + self.previous_action * self.num_actions

    @property
    def num_phi(self) -> int:
        if self.network:
            return num_products(self.num_state, self.num_node_attributes)
        return self.features + self.linear_features

    @property
    def num_inputs(self) -> int:
        """Columns that act on a step: actions, then exogenous inputs."""
        return self.num_actions + self.num_exogenous

    @property
    def regressed_state(self) -> list[int]:
        """The coordinates of x that the operator acts on beside phi: all but places in the plane."""
        if self.conservative or self.implicit or not self.selects:
            return []
        places = place_coordinates(self.points, self.num_observations, self.history)
        return [c for c in range(self.num_state) if c not in places]


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    horizons: steps rolled out, growing; each for an equal share of the iterations.
    systems, fit_episodes, fit_steps: what operators are fitted on; rollouts: windows a system to predict.
    free_running: whether windows are rolled out from their first state; otherwise every step is predicted from the true
        state before it, and judged by the effects that its operator should have had. Where what is left to learn is
        small beside noise that grows with time, single steps teach more.
    fresh_share: of chunks and windows that open an episode. noise: largest observation noise added to some batches.
    patience: stop after so many validations without progress; 0 never.
    """

    iterations: int = 3000
    seed: int = 0
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    systems: int = 4
    fit_episodes: int = 8
    fit_steps: int = 12
    rollouts: int = 4
    horizons: tuple[int, ...] = (4, 16, 16, 16, 32, 32, 32, 48)
    free_running: bool = True
    fresh_share: float = 0.2
    noise: float = 0.1
    noise_share: float = 0.3
    clip: float = 1.0
    validate_every: int = 250
    checkpoint_every: int = 50
    patience: int = 0
