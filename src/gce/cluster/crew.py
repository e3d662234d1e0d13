"""Independent pieces of work: in processes here, or on a Dask cluster (`on`).

    dask                  a cluster on this machine, gone at the end
    tcp://host:8786       any Dask cluster (tls:// too)
    slurm                 jobs of Slurm through dask-jobqueue; its options stand in Dask's own configuration

A piece writes its result to a file whose name is a digest of all that decides it, and no array travels: all machines
see one folder. Dask begins a piece again whose worker was lost; what was written is not computed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import gce
from gce.errors import InputError
from gce.names import PLUGINS, load_plugins
from gce.progress import held_back, workers

PATIENCE = 10.0
"""Seconds that a scheduler has to answer, and its workers to be there."""


@dataclass(frozen=True)
class Crew:
    """submit: a function with its arguments. size: how many pieces are worked on at once."""

    submit: Callable[..., Future[Any]]
    size: Callable[[], int]


def key_of(content: dict[str, Any]) -> str:
    """Of JSON values that decide a piece of work, and of this version."""
    return hashlib.sha256(json.dumps([gce.__version__, content], sort_keys=True).encode()).hexdigest()[:24]


@contextmanager
def crew(count: int, on: str | None = None) -> Iterator[Crew]:
    """So many processes here, workers of a cluster on this machine, or jobs of Slurm; a cluster at an address has its
    own. What goes wrong with a cluster is told in a sentence.
    """
    if on is None:
        with workers(count) as submit:
            yield Crew(submit, lambda: count)
        return
    if on not in ("dask", "slurm") and not on.startswith(("tcp://", "tls://")):
        raise InputError(f"--on is {on!r}, expected dask, slurm or the address of a Dask scheduler, tcp://host:8786")
    try:
        from distributed import KilledWorker
    except ImportError:
        raise InputError(f"--on {on} needs Dask: pip install 'dask[distributed]' dask-jobqueue") from None
    for name in ("distributed", "distributed.client", "tornado.application", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what went wrong is told below, in a sentence
    with ExitStack() as stack:
        try:
            client = stack.enter_context(_client(count, on))
            executor = client.get_executor(pure=False)

            def submit(work: Callable[..., Any], *given: Any) -> Future[Any]:
                return executor.submit(_piece, _source(), tuple(PLUGINS), work, *given)

            yield Crew(submit, lambda: max(count, len(client.nthreads())))
        except KilledWorker as error:
            raise InputError(
                f"{error.task} ended {error.allowed_failures + 1} workers, the last {error.last_worker.address}; see "
                "its log (memory may have run out); what is done is kept"
            ) from None
        except (AttributeError, ModuleNotFoundError) as error:
            if "gce" not in str(error):
                raise
            raise InputError(
                f"a worker has no gce, or another version of it ({error}); install the same there"
            ) from None
        except (CancelledError, TimeoutError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None and not isinstance(error, TimeoutError):
                raise  # of a file here
            raise InputError(
                f"the scheduler of --on {on} is gone; what is done is kept: start one, and give the same command again"
            ) from None


@contextmanager
def _client(count: int, on: str) -> Iterator[Any]:
    from distributed import Client

    resource_tracker.ensure_running()  # where its start is due later, it lets the signals through again
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with held_back():
            at: Any = on
            if on == "dask":
                from distributed import LocalCluster

                at = stack.enter_context(
                    LocalCluster(
                        n_workers=count,
                        threads_per_worker=1,
                        memory_limit=0,
                        dashboard_address=None,
                        silence_logs=logging.CRITICAL,
                    )
                )
            elif on == "slurm":
                at = stack.enter_context(_slurm(count))
            try:
                client = stack.enter_context(Client(at, timeout=PATIENCE, set_as_default=False))
            except (OSError, ValueError, TimeoutError):
                raise InputError(
                    f"no Dask scheduler answers at {on}; start one (dask scheduler), or give its address"
                ) from None
        if on not in ("dask", "slurm"):
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except TimeoutError:
                raise InputError(f"the scheduler at {on} has no workers; start some (dask worker {on})") from None
        yield client


def _slurm(count: int) -> Any:
    from dask_jobqueue.slurm import SLURMCluster

    try:
        cluster = SLURMCluster()
    except (ValueError, TypeError) as error:
        raise InputError(
            f"the options of --on slurm: {str(error).splitlines()[0]} Give them under jobqueue: slurm: in "
            "~/.config/dask/jobqueue.yaml; docs/cluster.md has an example"
        ) from None
    cluster.scale(jobs=count)
    return cluster


@cache
def _source() -> str:
    """This version, with a digest of its code."""
    folder, digest = Path(gce.__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return f"gce {gce.__version__} ({digest.hexdigest()[:8]})"


_ONE = threading.Lock()
"""A worker may have several threads; pieces are for one."""


def _piece(source: str, plugins: tuple[str, ...], work: Callable[..., Any], *given: Any) -> Any:
    from distributed import get_worker

    address = get_worker().address
    with _ONE:
        if _source() != source:
            raise InputError(
                f"the worker {address} has {_source()}, this is {source}: its keys would differ; install the same there"
            )
        try:
            load_plugins([name for name in plugins if name not in PLUGINS])
            return work(*given)
        except InputError as error:
            raise InputError(f"{error} (told by the worker {address}; what is done is kept)") from None
