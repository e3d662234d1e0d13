"""Commands as people run them: what goes wrong is a sentence and status 2, never a trace of the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, runtime_checkable

from gce.errors import InputError


@runtime_checkable
class Runs(Protocol):
    """A command: arguments as fields, and the work."""

    def run(self) -> object: ...


Command = TypeVar("Command", bound=Runs)


@contextmanager
def in_words(name: str, resumes: bool) -> Iterator[None]:
    """name: of the program; resumes: whether the command, given again, goes on where it was stopped."""
    try:
        yield
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        again = "goes on from here" if resumes else "begins anew"
        print(f"{name}: stopped; nothing half-written is left, and the same command {again}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(2)


def run_module(kind: Callable[..., Command], resumes: bool = True) -> object:
    """`python -m MODULE ...` for a module that holds one command."""
    import tyro

    command = tyro.cli(kind)
    with in_words("gce", resumes):
        return command.run()
