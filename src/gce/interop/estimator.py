"""`fit`, `predict` and `score` as in scikit-learn, for lists of trajectories; scikit-learn itself is not needed."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gce.errors import InputError, listed, table
from gce.trajectory import Dataset


class Regressor:
    """Learns how trajectories go on under actions, and predicts them from their first observation.

    The constructor only keeps its arguments; what `fit` finds has names that end in an underscore:
    `model_` (the trained model), `systems_` (the adapted system of each group) and `validation_nrmse_`.

    form, potential, bandwidth, features, ridge: of the model.
    iterations, horizon, validation: of training; 0 iterations fit the operator on untrained features, in closed form.
    dt: seconds a step. seed: decides everything random.
    model: a trained model or its folder; `fit` then adapts it in closed form and trains nothing.
    """

    def __init__(
        self,
        *,
        form: str = "hom_mean",
        potential: str = "gaussian",
        bandwidth: float = 2.0,
        features: int = 32,
        ridge: float = 1e-4,
        iterations: int = 200,
        horizon: int = 16,
        validation: float = 0.2,
        dt: float = 1.0,
        seed: int = 0,
        model: Any = None,
    ) -> None:
        self.form, self.potential, self.bandwidth, self.features = form, potential, bandwidth, features
        self.ridge, self.iterations, self.horizon, self.validation = ridge, iterations, horizon, validation
        self.dt, self.seed, self.model = dt, seed, model

    # ---- parameters ----

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return self._chosen(*inspect.signature(type(self)).parameters)

    def set_params(self, **parameters: Any) -> Regressor:
        known = self.get_params()
        for name, value in parameters.items():
            if name not in known:
                raise InputError(f"there is no parameter {name!r}; the parameters are {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        changed = {name: value for name, value in self.get_params().items() if value is not defaults[name]}
        return f"Regressor({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    # ---- learning ----

    def fit(
        self,
        X: Sequence[Any],
        u: Sequence[Any] | None = None,
        *,
        edge_index: Any = None,
        groups: Sequence[Hashable] | None = None,
        **system: Any,
    ) -> Regressor:
        """From trajectories [T+1, nodes, d] and actions [T, nodes, a], one each an episode.

        edge_index, groups, system: as in `Dataset.from_arrays`. Without edge_index trajectories are [T+1, d] and
        actions [T, a], of a system that is one object.
        """
        from gce.model.files import load_model
        from gce.system.system import adapt
        from gce.training.learning import train
        from gce.training.preparation import config_for, prepare

        self._alone = edge_index is None
        data = self._data(X, u, edge_index, groups, system)
        shape = {"potential_value": self.bandwidth, **self._chosen("form", "potential", "features", "ridge")}
        self.validation_nrmse_: float | None = None
        if self.model is not None:
            self.model_ = load_model(self.model) if isinstance(self.model, str | Path) else self.model
        elif self.iterations == 0:
            self.model_ = prepare(config_for(data, **shape), data, self.seed).eval()
        else:
            trained = train(
                data, model=shape, method="structured", **self._chosen("iterations", "horizon", "seed", "validation")
            )
            self.model_, self.validation_nrmse_ = trained.model, trained.validation_nrmse
        names = list(dict.fromkeys(groups)) if groups is not None else [0]
        self.systems_ = {
            name: adapt(self.model_, [data[int(k)] for k in data.group(number).episodes])
            for number, name in enumerate(names)
        }
        return self

    def adapt(self, X: Sequence[Any], u: Sequence[Any] | None = None, **system: Any) -> Regressor:
        """A regressor for another system, from a few trajectories of it, in closed form; arguments as of `fit`."""
        self._check_fitted()
        return Regressor(**{**self.get_params(), "model": self.model_}).fit(X, u, **system)

    def predict(self, X: Sequence[Any], u: Sequence[Any] | None = None, *, group: Hashable | None = None) -> list[Any]:
        """The trajectories that actions lead to: the first observation of each, then what is predicted.

        X: trajectories, of which only the first observation is looked at; or first observations [nodes, d] alone.
        u: actions [T, nodes, a], one array each; may be left out of trajectories of a system that takes none.
        group: which of several systems it is about.
        """
        system = self._system(group)
        inputs = system.model.config.num_actions
        predictions = []
        X = listed("X", X, "arrays")
        acted = None if u is None else listed("u", u, "arrays")
        if acted is not None and len(acted) < len(X):
            raise InputError(f"u has {len(acted)} arrays, X {len(X)}; give one a trajectory")
        for k, x in enumerate(X):
            x = self._lifted(x, 1 if self._alone else 2)
            if not len(x):
                raise InputError(f"trajectory {k} is empty; give its first observation")
            if acted is None and (inputs or x.ndim < 3):
                raise InputError("the system takes actions, which are missing; give u, one array a trajectory")
            steps = self._lifted(acted[k], 2 if self._alone else 3) if acted else np.zeros((len(x) - 1, x.shape[1], 0))
            predicted = system.predict(x[0] if x.ndim == 3 else x, steps)
            predictions.append(predicted[:, 0] if self._alone else predicted)
        return predictions

    def score(self, X: Sequence[Any], u: Sequence[Any] | None = None, *, group: Hashable | None = None) -> float:
        """R^2 of whole trajectories predicted from their first observations, the mean over coordinates.

        1 is perfect, 0 as good as the mean; every step after the first counts.
        """
        predicted = np.concatenate([_rows(p[1:]) for p in self.predict(X, u, group=group)])
        true = np.concatenate([_rows(np.asarray(x, dtype=float)[1:]) for x in X])
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = np.square(predicted - true).sum(axis=0)
        spread = np.square(true - true.mean(axis=0)).sum(axis=0)
        moving = spread > 0
        r2 = np.where(moving, 1 - wrong / np.where(moving, spread, 1), np.where(wrong > 0, 0.0, 1.0))
        return float(np.nan_to_num(r2.mean(), nan=-np.inf))

    def _chosen(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def _data(self, X: Any, u: Any, edge_index: Any, groups: Any, system: dict[str, Any]) -> Dataset:
        if self._alone:
            X, u = listed("X", X, "arrays"), None if u is None else listed("u", u, "arrays")
            for k, x in enumerate([*X, *(u or ())]):
                shape = table("a trajectory", x, finite=None).shape
                if len(shape) != 2:
                    raise InputError(
                        f"trajectory {k % len(X)} has shape {shape}; without edge_index a system is one object and a "
                        "trajectory [T+1, coordinates]: give edge_index for several"
                    )
            X = [np.asarray(x)[:, None] for x in X]
            u = None if u is None else [np.asarray(a)[:, None] for a in u]
            edge_index = np.zeros((2, 0), np.int64)
        return Dataset.from_arrays(X, u, edge_index, groups=groups, dt=self.dt, **system)

    def _lifted(self, values: Any, observation: int) -> np.ndarray:
        """Of one object: with an axis for it before the last one."""
        array = table("an array", values, finite=None)
        if array.ndim not in (observation, observation + 1):
            raise InputError(
                f"an array has shape {array.shape}; give {observation} axes, or one more, for the "
                "objects, before the last"
            )
        return np.expand_dims(array, -2) if self._alone else array

    def _system(self, group: Hashable | None) -> Any:
        self._check_fitted()
        if group is None and len(self.systems_) > 1:
            raise InputError(
                f"this was fitted to several systems; say which group: {', '.join(map(str, self.systems_))}"
            )
        name = next(iter(self.systems_)) if group is None else group
        if name not in self.systems_:
            raise InputError(f"there is no group {name!r}; the groups are {', '.join(map(str, self.systems_))}")
        return self.systems_[name]

    def _check_fitted(self) -> None:
        if not hasattr(self, "systems_"):
            raise InputError("this regressor was not fitted; call fit first")


def _rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1])
