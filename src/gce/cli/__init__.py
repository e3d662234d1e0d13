"""The command line. Modules here import the heavy rooms only when a command runs, so that help is quick."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from functools import reduce
from io import StringIO
from operator import getitem, or_
from typing import Annotated, Any, get_args

import tyro

import gce
from gce.cli.control import Control
from gce.cli.data import Data, with_worlds
from gce.cli.learn import Adapt, Predict
from gce.cli.pages import Demo, Explore, Report
from gce.cli.reproduce import Reproduce
from gce.cli.train import Train
from gce.cli.warm import Warm
from gce.errors import InputError
from gce.files import locked, unchecked, writable
from gce.names import load_plugins, meant
from gce.progress import follower, in_words

Command = (
    Annotated[Data, tyro.conf.subcommand("data", description="Record, import, check, replay and show data sets.")]
    | Annotated[Train, tyro.conf.subcommand("train", description="Train a model on a data set.")]
    | Annotated[Adapt, tyro.conf.subcommand("adapt", description="Adapt a model to one system of a data set.")]
    | Annotated[Predict, tyro.conf.subcommand("predict", description="Predict an episode after adapting to others.")]
    | Annotated[Control, tyro.conf.subcommand("control", description="Adapt to a system, plan, and act on it.")]
    | Annotated[Report, tyro.conf.subcommand("report", description="Write a page about a controlled run.")]
    | Annotated[Explore, tyro.conf.subcommand("explore", description="Drag goals on a page, and watch them reached.")]
    | Annotated[Demo, tyro.conf.subcommand("demo", description="Control a rope that was never seen, and show it.")]
    | Annotated[Warm, tyro.conf.subcommand("warm", description="Compile the kernels of plans ahead (extra fast).")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce", description="Run the paper's tables and figures again.")]
)

COMMANDS = ("data", "train", "adapt", "predict", "control", "report", "explore", "demo", "warm", "reproduce")

DESCRIPTION = """Graph controllable embeddings: learn the dynamics of many interacting objects from recordings, and
control them.

Worlds, potentials, forms, kinds of features and solvers of your own are usable by name in every command after
--plugin MODULE, a Python module that registers them; give it before or after the command, as often as needed."""
PLUGIN = "--plugin"


def main(arguments: list[str] | None = None) -> None:
    """Run a command.

    NumPy's products are of small matrices here: several threads wait for each other longer than they work, many times
    longer on a busy machine. NumPy reads the variable when it is imported, which no command has done yet.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    given = sys.argv[1:] if arguments is None else arguments
    with in_words("gce", False):
        given, plugins = split_plugins(given)
        load_plugins(plugins)
    if given[:1] == ["--version"]:
        print(f"gce {gce.__version__}")
        return
    if given and given[0].isidentifier() and given[0] not in COMMANDS:
        print(f"gce: there is no command {given[0]!r}{meant(given[0], COMMANDS)}; see gce --help", file=sys.stderr)
        raise SystemExit(2)
    with options_in_a_sentence(given):
        command: Any = tyro.cli(
            with_plugins() if plugins else Command,
            prog="gce",
            description=DESCRIPTION,
            args=given,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
        )
    asked = getattr(command, "command", command)
    rank = follower()
    name = "gce" if rank is None else f"gce, rank {rank}"
    with in_words(name, getattr(asked, "resumes", False)), ExitStack() as stack:
        if getattr(asked, "unchecked", False):
            stack.enter_context(unchecked())
        out = getattr(asked, "out", None)
        if rank is not None:  # it writes nothing, and tells of its errors alone
            stack.enter_context(redirect_stderr(stack.enter_context(open(os.devnull, "w"))))
        elif out is not None and out.parent.is_dir() and getattr(asked, "ranks", 1) == 1:  # of ranks the first locks it
            with writable(out, "give another place with --out"):
                stack.enter_context(locked(out))
        command.run()


@contextmanager
def options_in_a_sentence(given: list[str]) -> Iterator[None]:
    """Options that a command does not have are told in a sentence, where tyro draws a box of those of all commands."""
    drawn = StringIO()
    try:
        with redirect_stderr(drawn):
            yield
    except SystemExit:
        wrong = re.search(r"Unrecognized options: (-[^\s,]+)", drawn.getvalue())
        if wrong is None:
            print(drawn.getvalue(), end="", file=sys.stderr)
            raise
        words = given[: next((k for k, word in enumerate(given) if word.startswith("-")), len(given))]
        near = re.findall(r"(--[\w-]+)(?:(?!--).)*?in gce " + words[0] + r"\b", drawn.getvalue(), re.S) if words else []
        asked = " ".join(["gce", *words[:1], "--help"])
        print(f"gce: there is no option {wrong[1]!r}{meant(wrong[1], near)}; see {asked}", file=sys.stderr)
        raise SystemExit(2) from None


def split_plugins(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(the other arguments, the modules named by --plugin)."""
    rest: list[str] = []
    plugins: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == PLUGIN or word.startswith(f"{PLUGIN}="):
            name = word.removeprefix(PLUGIN).removeprefix("=") or next(words, "")
            if not name or name.startswith("-"):
                raise InputError("--plugin names no module; give one, as in --plugin my_potential")
            plugins.append(name)
        else:
            rest.append(word)
    return rest, plugins


def with_plugins() -> Any:
    """The commands, and one to record each world that a plugin registered."""
    data, *others = get_args(Command)
    kind = getitem(Annotated, (with_worlds(), *data.__metadata__))
    return reduce(or_, others, kind)
