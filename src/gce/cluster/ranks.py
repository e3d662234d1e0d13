"""Training on several processes under torchrun, the ranks: each keeps its share of the systems of every batch.

Every rank draws the whole batch and its noise from (seed, iteration), and its loss is its part of the batch's: parts
add up, and so do their gradients, over gloo. All ranks then take the same step. The first rank writes, and says how
late it is, whether to stop and what the validation error is. Without torchrun there is one rank, and nothing is added.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

import gce
from gce.errors import InputError

WATCHED = 1.0
"""Seconds between two looks whether torchrun is still there."""


@dataclass(frozen=True)
class Ranks:
    """Which rank this is, of how many."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank writes."""
        return self.rank == 0

    def share(self, systems: int) -> slice:
        """Which systems of a batch are this rank's."""
        if systems < self.count:
            raise InputError(
                f"an iteration works on {systems} systems, fewer than the {self.count} ranks; give --systems "
                f"{self.count} or more, or fewer ranks"
            )
        return slice(self.rank * systems // self.count, (self.rank + 1) * systems // self.count)

    def total(self, value: Tensor) -> Tensor:
        """The sum over ranks, of what needs no gradient."""
        if self.count == 1:
            return value
        summed = value.detach().to("cpu", copy=True)
        distributed.all_reduce(summed)
        return summed.to(value.device)

    def add_gradients(self, parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Each gradient becomes the sum over ranks; gives that of the losses. What no rank has stays None."""
        if self.count == 1:
            return loss
        had = torch.tensor([parameter.grad is not None for parameter in parameters])
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([loss.detach().reshape(1), had.to(loss), *(g.reshape(-1).to(loss) for g in grads)])
        flat = self.total(flat)
        loss, had, flat = flat[0], flat[1 : len(had) + 1], flat[len(had) + 1 :]
        parts = flat.split([p.numel() for p in parameters])
        for parameter, part, any_had in zip(parameters, parts, had.tolist(), strict=True):
            parameter.grad = part.view_as(parameter).to(parameter) if any_had else None
        return loss

    def of_first(self, *values: float) -> list[float]:
        """The first rank's numbers, everywhere."""
        if self.count == 1:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64)
        distributed.broadcast(told, 0)
        return told.tolist()

    def check_alike(self, **seen: str) -> None:
        """Refuse ranks that see something else than the first, by its name."""
        if self.count == 1:
            return
        seen["version"] = gce.__version__
        others: list[dict[str, str]] = [{}] * self.count
        distributed.all_gather_object(others, seen)
        for rank, other in enumerate(others):
            for name in seen:
                if others[0][name] != other[name]:
                    raise InputError(
                        f"rank {rank} sees another {name} than rank 0; give all ranks the same files and settings"
                    )


ALONE = Ranks()


@dataclass(frozen=True)
class Share:
    """Of a batch, what is one rank's: this part of its systems; of `whole` rows along `dim`, those from `start` on."""

    ranks: Ranks = ALONE
    part: float = 1.0
    dim: int = 0
    start: int = 0
    whole: int = 0

    def normal(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """A rank's rows of what is drawn for the whole batch."""
        if self.ranks.count == 1:
            return torch.randn(tuple(shape), generator=generator)
        whole = list(shape)
        whole[self.dim] = self.whole
        return torch.randn(whole, generator=generator).narrow(self.dim, self.start, shape[self.dim])

    def spread(self, rows: Tensor) -> Tensor:
        """The standard deviation over the rows of all ranks."""
        if self.ranks.count == 1:
            return rows.std(0)
        count = float(self.ranks.total(torch.tensor(float(len(rows)))))
        mean = self.ranks.total(rows.sum(0)) / count
        return (self.ranks.total((rows - mean).square().sum(0)) / (count - 1)).sqrt()


WHOLE = Share()


@cache
def ranks() -> Ranks:
    """This process among those that torchrun started; alone where it did not."""
    if not started():
        return ALONE
    if not distributed.is_initialized():
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True, name="ends with torchrun").start()
        store, rank, count = next(rendezvous("env://"))
        # Ranks that are begun again find each other, and not the addresses of those before.
        store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=count)
    return Ranks(distributed.get_rank(), distributed.get_world_size())


def started() -> bool:
    """Whether torchrun started this process."""
    return distributed.is_torchelastic_launched()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCHED)
    os._exit(1)


def launch(count: int, command: Sequence[str]) -> None:
    """A command of this package in so many ranks on this machine; they end with this process."""
    import signal
    import sys
    import uuid

    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "gce", *command)
    except SignalException:
        raise KeyboardInterrupt from None
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        if 2 in codes:  # it said why
            sys.exit(2)
        names = [signal.Signals(-code).name if code < 0 else f"status {code}" for code in codes]
        raise InputError(
            f"a rank ended with {', '.join(sorted(set(names)))}; the same command goes on from the last checkpoint"
        ) from None
