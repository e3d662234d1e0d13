"""Names: of a package, looked up when first used; of classes that users add to a table, such as potentials, and the
modules that hold these (plugins); and some of many, in a sentence. How objects say what they are, in a line or in a
notebook. The methods by one word each: which features, forms, losses and plans belong together.

A model carries its method, from the kind of its features or as its file says. To add one, write it here, name it in a
kind of features (`Features.method`) and say how it is trained (`gce.training.preparation`).
"""

from __future__ import annotations

import difflib
import html
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from gce.errors import InputError

if TYPE_CHECKING:
    import numpy as np

Kind = TypeVar("Kind")


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names and modules are imported when first used.

    package: its `__name__`. homes: the module that each of its names is in; its own modules need not be among them.
    """

    def attribute(name: str) -> Any:
        if name in homes:
            home = importlib.import_module(homes[name])
            return home if homes[name].endswith(f".{name}") and not hasattr(home, name) else getattr(home, name)
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        import pkgutil

        inside = pkgutil.iter_modules(importlib.import_module(package).__path__)
        return sorted({*homes, *(module.name for module in inside if not module.name.startswith("_"))})

    return attribute, listed


CONTRACTS = {
    "gce.envs.base.GraphEnv": "gce.envs:register_world",
    "gce.potentials.Potential": "gce.potentials:register_potential",
    "gce.operators.forms.Form": "gce.operators:register_form",
    "gce.features.base.Features": "gce.features:register_features",
    "gce.control.solver.Solver": "gce.control.solver:register_solver",
}
"""By the abstract class that a user derives from, what makes a class of its kind known, as "module:function"."""
PLUGINS: list[str] = []
"""The plugins loaded so far, for processes beside this one."""
GROUP = "gce.plugins"
"""Of the entry points by which an installed package names its plugins."""


def register(cls: Any) -> Any:
    """Make a world, potential, form, kind of features or solver known by its name, as a decorator or a call."""
    bases = [f"{base.__module__}.{base.__qualname__}" for base in getattr(cls, "__mro__", ())]
    place = next((CONTRACTS[base] for base in bases if base in CONTRACTS), None)
    if place is None:
        label = getattr(cls, "__name__", repr(cls))
        raise InputError(f"{label} cannot be registered: derive it from one of {', '.join(CONTRACTS)}")
    module, function = place.split(":")
    return getattr(importlib.import_module(module), function)(cls)


def load_plugins(names: Sequence[str]) -> None:
    """Import what a person named: entry points of the group, or modules (also of the working directory), that register
    classes. No file names one."""
    from importlib.metadata import entry_points

    for name in names:
        module = next((point.module for point in entry_points(group=GROUP, name=name)), name)
        path = list(sys.path)
        sys.path.append(os.getcwd())
        try:
            importlib.import_module(module)
        except InputError as error:
            raise InputError(f"the plugin {name!r} is refused: {error}") from None
        except (Exception, SystemExit) as error:
            raise InputError(
                f"the plugin {name!r} does not import ({type(error).__name__}: {error}); give the name of a module, as "
                "in `import`, that can be imported here"
            ) from None
        finally:
            sys.path[:] = path
        PLUGINS.append(name)


def add(table: dict[str, Any], cls: Any, contract: type, needs: tuple[str, ...] = ()) -> Any:
    """The class, now in a table under its `name`; one that breaks the contract is refused with what is missing.

    contract: the abstract class to derive from. needs: attributes that a class must set, beside its name.
    """
    kind, label = contract.__name__.lower(), getattr(cls, "__name__", repr(cls))
    if not (isinstance(cls, type) and issubclass(cls, contract)):
        base = f"{contract.__module__}.{contract.__name__}"
        raise InputError(f"{label} cannot be registered as a {kind}: it is not a class derived from {base}; derive it")
    name = vars(cls).get("name")
    missing = [] if isinstance(name, str) and name else ["name"]
    missing += [need for need in needs if not hasattr(cls, need)]
    missing += sorted(getattr(cls, "__abstractmethods__", ()))
    if missing or not isinstance(name, str):
        raise InputError(
            f"{label} cannot be registered as a {kind}: it has no {', no '.join(missing)} of its own; define it in the "
            "class"
        )
    if table.get(name, cls) is not cls:
        raise InputError(f"there is a {kind} {name!r} already, {table[name].__name__}; give {label} another name")
    table[name] = cls
    return cls


def registered(table: Mapping[str, type[Kind]], name: str, kind: str) -> type[Kind]:
    """The class of that name; kind: what the table holds, in the singular."""
    if name not in table:
        raise InputError(
            f"there is no {kind} {name!r}{meant(name, list(table))}; there are {', '.join(table)}; `gce.register` adds "
            "one, or the module given to --plugin"
        )
    return table[name]


def some(names: Sequence[Any], most: int = 8) -> str:
    """The first of some names or numbers, for a sentence."""
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


def meant(name: str, known: Sequence[str]) -> str:
    """The known name that a wrong one comes nearest to, as part of a sentence; nothing where none is near."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


class Shown:
    """An object that says what it is: one line in Python, a small table and picture in a notebook."""

    def facts(self) -> dict[str, Any]:
        """What there is to say, by name; short values."""
        raise NotImplementedError

    def curves(self) -> np.ndarray | None:
        """[steps, curves] to draw small in a notebook."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self.facts().items())})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for name, value in self.facts().items()
        )
        return f"<b>{type(self).__name__}</b><table>{rows}</table>{_sketch(self.curves())}"


WIDE, HIGH, MOST_CURVES = 240, 60, 12


def _sketch(curves: np.ndarray | None) -> str:
    """A small picture of some curves."""
    if curves is None or len(curves) < 2:
        return ""
    low, high = float(curves.min()), float(curves.max())
    across = WIDE / (len(curves) - 1)
    lines = "".join(
        "<polyline fill='none' stroke='#1f77b4' stroke-opacity='0.6' points='"
        + " ".join(f"{k * across:.1f},{HIGH - HIGH * (v - low) / ((high - low) or 1):.1f}" for k, v in enumerate(curve))
        + "'/>"
        for curve in curves.T[:MOST_CURVES].tolist()
    )
    return f"<svg width='{WIDE}' height='{HIGH}' viewBox='-1 -1 {WIDE + 2} {HIGH + 2}'>{lines}</svg>"


Method = Literal["published", "structured", "general"]
METHODS: tuple[str, ...] = get_args(Method)
USUAL = "structured"
"""What worlds use unless another is asked for."""


def check_method(name: str) -> str:
    """The name of a method; others are refused."""
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}{meant(name, METHODS)}; the methods are {', '.join(METHODS)}")
    return name


def check_same(asked: str | None, found: str, what: str) -> None:
    """That a model is of the method asked for, if one is; what: the model, in a sentence."""
    if asked is not None and check_method(asked) != found:
        raise InputError(f"{what} is of the method {found}, asked for as {asked}; leave --method out, or give another")


def folder_name(name: str, method: str | None) -> str:
    """The folder of a shipped model, by the name of its world and its method."""
    method = USUAL if method is None else check_method(method)
    return name if method == USUAL else f"{name}_{method}"
