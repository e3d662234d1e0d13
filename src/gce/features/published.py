"""The features of the paper, by its text ('Mapping to RKHSs', 'Loss functions'); the method `published`.

    psi^h_i = phi_H(o)_i,   psi^o_i = phi_O(o)_i       message passing, bounded by +-bound
    psi^a_i = a_i / std                                a fixed linear map of the action
    E[psi^o_t] = C (sum over j in E(i) of alpha_ij psi^h_j) + sum over j of B_ij psi^a_j
    o_t = decoder(psi^o_t)                             message passing as well

The observation is not among the features. A rollout stays in feature space: a predicted psi^o stands where psi^h
stands in the next step. docs/published.md has each element beside the paper's words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gce.errors import InputError
from gce.features.autoencoder import Decoder
from gce.features.base import Encode, Features, FeaturesConfig, StateShape
from gce.features.inputs import InputLayer
from gce.features.message_passing import Encoder, EncoderShape
from gce.graphs.topology import Topology

CHOICES = {"actions": ("pairs", "neighbours"), "estimator": ("joint", "neighbours"), "hom": ("relations", "average")}
"""Where the paper leaves a choice or contradicts itself; the first is taken unless told otherwise."""
FORMS = ("hom_mean", "hom", "dense", "tensor")
OWN_FORMS = ("hom_mean_pairs", "hom_mean_edges", "hom_pairs", "hom_edges", "hom_average")
"""Forms of single pairs of nodes, as these four are called inside."""


LEAVES = {
    "own_block": "a shared operator acts on the mean field alone (equation 'Meta-representation')",
    "reproject": "sequences are generated in the feature space ('Loss Functions')",
    "previous_action": "the history is the observation before ('Notation and setup')",
    "late_action": "an action acts on the next observation (equation 'graph dynamics')",
    "fresh_start": "one operator serves all steps (equation 'Meta-representation')",
    "node_constants": "the embedding is a sum over histories and actions (equation 'Meta-representation')",
    "points": "an encoder sees observations and edges ('Mapping to RKHSs')",
    "kinematics": "features of the whole observation are predicted (equation 'conditional mean embedding')",
}
"""Settings of a model that leave the paper's text, and which sentence they leave."""


def left_text(option: str, sentence: str, method: str = "structured") -> InputError:
    """What to say of an option that leaves the paper's text; method: what a model with it would be."""
    return InputError(
        f"{option} leaves the paper's text: {sentence}; leave it out, or train by --method {method} (method={method!r})"
    )


@dataclass(frozen=True)
class PublishedConfig(FeaturesConfig):
    """num_features within +-bound; widths of hidden layers; rounds of messages.

    scale, heard: how training begins: the std of the features, and the share of messages and hidden layers in them.
    shared_map: one map for phi_H and phi_O. constant: whether a constant stands among the regressors.
    Where the paper leaves a choice: `actions` of all `pairs` of nodes (forward loss, pseudo code) or of `neighbours`
    (equation 'Meta-representation'); `estimator` in one `joint` regression, or each history and each action of
    `neighbours` apart (appendix, 'Empirical Estimation'); operators of `hom` by `relations`, or the `average` over
    receivers (appendix), which is apart in any case. Regressions apart have no constant.
    Plans cost q1 at every step, q_terminal more at the last, in features, and q2 of the action's, unless told
    otherwise.
    """

    kind: ClassVar[str] = "published"
    num_features: int = 32
    node_width: int = 64
    edge_width: int = 32
    rounds: int = 2
    bound: float = 1.0
    scale: float = 0.5
    heard: float = 0.1
    shared_map: bool = False
    constant: bool = True
    actions: str = "pairs"
    estimator: str = "joint"
    hom: str = "relations"
    q1: float = 1.0
    q2: float = 0.1
    q_terminal: float = 0.0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}; the paper leaves {' or '.join(choices)}")

    def encoder(self, shape: StateShape) -> Encoder:
        inputs = replace(shape, points=()).input_layer(InputLayer)  # no geometry
        sizes = EncoderShape(
            num_relations=shape.num_relations,
            num_node_types=shape.num_node_types,
            num_features=self.num_features,
            num_linear=0,
            node_width=self.node_width,
            edge_width=self.edge_width,
            rounds=self.rounds,
            shortcut=True,
        )
        return Encoder(inputs, sizes, self.bound)


TUNED = {"bound": 200.0, "scale": 3.0, "rounds": 4, "shared_map": True, "q_terminal": 1000.0, "q2": 100.0}
"""What the tuned preset changes in the model; the literal one takes the defaults of `PublishedConfig`."""
SHARED = {"noise_share": 0.0, "fit_steps": 8}
PRESETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "literal": (
        {},
        {
            **SHARED,
            "iterations": 400_000,
            "horizon": 16,
            "horizons": (16,),
            "learning_rate": 1e-4,
            "schedule": "paper",
            "systems": 2,
            "rollouts": 4,
            "forward": 1.0,
            "relative": False,
            "fresh_share": 0.0,
        },
    ),
    "tuned": (
        TUNED,
        {
            **SHARED,
            "iterations": 10_000,
            "horizon": 40,
            "horizons": (4, 16, 16, 40, 40, 40, 40),
            "learning_rate": 2e-3,
            "systems": 2,
            "rollouts": 4,
            "forward": 1.0,
            "fresh_share": 0.8,
            "fit_fresh_share": 0.1,
        },
    ),
}
"""Settings of the model and of its training: by the paper's text, and with what the notes say changed. The batch is of
eight windows, four of each of two systems."""


class Published(Features):
    """phi_H, phi_O and the decoder of the paper."""

    name = "published"
    Config = PublishedConfig
    method = "published"
    config: PublishedConfig
    acts: Tensor
    selects = False
    planned_in_features = True
    added = ("acts",)
    settings = {
        "form": "hom_mean",
        "own_block": False,
        "potential": "gaussian",
        "potential_value": 2.0,
        "potential_learned": False,
        "reproject": False,
        "node_constants": 0.0,
        # The history is the observation before: no difference between coordinates, no earlier action.
        "kinematics": (),
        "points": (),
        "rest_start": False,
        "fresh_start": False,
        "late_action": False,
        "previous_action": False,
    }

    def __init__(self, shape: StateShape, config: PublishedConfig) -> None:
        super().__init__(shape, config)
        self.history = config.encoder(shape)
        self.future = None if config.shared_map else config.encoder(shape)
        self.decoder = Decoder(
            config.num_features,
            shape.num_observations,
            shape.num_relations,
            shape.num_node_types,
            config.node_width,
            config.edge_width,
        )
        self.register_buffer("acts", torch.ones(shape.num_node_types, shape.num_inputs, dtype=torch.bool))
        self.prepared()

    @classmethod
    def check(cls, config: Any) -> None:
        super().check(config)
        for name, left in LEAVES.items():
            value = getattr(config, name)
            if value:
                raise left_text(f"{name}={value}", left)
        if config.form not in (*FORMS, *OWN_FORMS):
            raise left_text(f"form={config.form!r}", "it has the forms Tensor, Dense, Hom and Hom+Mean ('Comparison')")

    def form_named(self, name: str) -> str:
        ending = "pairs" if self.config.actions == "pairs" else "edges"
        named = {"hom_mean": f"hom_mean_{ending}", "hom": f"hom_{ending}"}
        return "hom_average" if name == "hom" and self.config.hom == "average" else named.get(name, name)

    @property
    def acting(self) -> Tensor:
        return self.acts

    @property
    def costs(self) -> dict[str, float]:
        c = self.config
        return {"state_cost": c.q1, "terminal_cost": c.q_terminal, "action_cost": c.q2}

    @property
    def joint(self) -> bool:
        return self.config.estimator == "joint"

    @property
    def inputs(self) -> InputLayer:
        return self.history.inputs

    @property
    def num_phi(self) -> int:
        return self.config.num_features

    @property
    def regressed_state(self) -> list[int]:
        return []

    def on(self, topology: Topology) -> Encode:
        return self.history.on(topology)

    def future_phi(self, x: Tensor, topology: Topology, phi: Tensor | None = None) -> Tensor:
        return super().future_phi(x, topology, phi) if self.future is None else self.future(x, topology)

    def reach(self, topology: Topology) -> int:
        return self.config.rounds + 1

    def decoder_on(self, topology: Topology) -> Callable[[Tensor], Tensor]:
        return self.decoder.on(topology)

    def constants(self, values: Tensor) -> Tensor:
        return values if self.config.constant and self.joint else torch.zeros_like(values)

    def prepare(self, samples: Any) -> None:
        """Both maps begin as one: a rollout puts what one predicts where the other stands."""
        samples = list(samples)
        super().prepare(samples)
        self.history.start_at(samples, self.config.scale, self.config.heard)
        if self.future is not None:
            self.future.load_state_dict(self.history.state_dict())
