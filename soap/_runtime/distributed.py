"""Several processes that train or evaluate together, over accelerate.

`accelerate launch` and `torchrun` start one command several times and set each process's rank in the environment.
accelerate joins them into a group and exchanges tensors. All processes must make the same calls in the same order.
In a single process nothing is imported and every call returns at once.

Gradients are averaged with accelerate's `reduce` instead of DistributedDataParallel. DDP copies batch-norm statistics
from the first process, where training here averages them. It synchronises the `forward` of one module, where auxiliary
tasks call encoder, classifier and head separately. The check for NaN needs the mean loss before the update anyway, so
one message carries gradients, losses and statistics.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module

import torch
import torch.distributed as dist

from soap.errors import InputError, SoapError
from soap.shapes import Float, Tensor

LONGEST_WAIT = timedelta(days=7)
"""How long a process waits for the others in `long_waits`."""


class PeerLostError(SoapError):
    """Another process of the run has ended, so this one cannot continue."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The group of processes that this one belongs to: its rank (from 0), their number, and what they exchange."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.world_size > 1

    def shard(self, samples: int) -> slice:
        """Return this process's part of a batch; all parts have the same size, in order."""
        if samples % self.world_size:
            raise InputError(
                f"a batch of {samples} cannot be split evenly among {self.world_size} processes; choose a batch size "
                "that is a multiple of the number of processes."
            )
        size = samples // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process; waits for the device and for all processes."""
        if not self.is_distributed:
            return flag
        return bool(_reduce(torch.tensor(float(flag), device=_exchange_device()), "sum"))

    def barrier(self) -> None:
        """Wait until all processes have reached this call."""
        self.any(False)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block in the main process first, then in the others, even if the main process raises."""
        if not self.is_main:
            self.barrier()
        try:
            yield
        finally:
            if self.is_main:
                self.barrier()

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor in place by its mean over the processes, in one message."""
        mean = _reduce(torch.cat([tensor.flatten() for tensor in tensors]), "mean")
        parts = torch.split(mean, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor in place by the main process's."""
        if self.is_distributed:
            from accelerate.utils import broadcast

            for tensor in tensors:
                with _explained():
                    tensor.copy_(broadcast(tensor.contiguous()))

    def sum_disjoint(self, table: Tensor) -> None:
        """Sum a table over the processes in place; each entry must be zero in all processes but one.

        Bytes are summed instead of values, so that every entry arrives unchanged.
        """
        if self.is_distributed:
            whole = table.to(_exchange_device()).contiguous()
            summed = _reduce(whole.view(-1).view(torch.uint8), "sum")
            table.copy_(summed.view(whole.dtype).view_as(whole))

    def broadcast_text(self, text: str) -> str:
        """Return the main process's text in every process."""
        if not self.is_distributed:
            return text
        from accelerate.utils import broadcast_object_list

        with _explained():
            return str(broadcast_object_list([text])[0])


def processes() -> Processes:
    """Return the group of this process: a single one, unless `process_group` or the calling script made a group."""
    if dist.is_available() and dist.is_initialized():
        return Processes(rank=dist.get_rank(), world_size=dist.get_world_size())
    return Processes()


def launched_count() -> int:
    """Return how many processes the launcher has started (WORLD_SIZE); 1 without a launcher."""
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdecimal() or (world != "1" and not os.environ.get("RANK", "").isdecimal()):
        raise InputError(
            f"WORLD_SIZE is {world!r} and RANK is {os.environ.get('RANK')!r}; start several processes with "
            "`accelerate launch -m soap ...` or `torchrun -m soap ...`, or unset both variables."
        )
    return int(world)


def launched_rank() -> int:
    """Return this process's rank as set by the launcher (RANK), before or after the group exists."""
    rank = os.environ.get("RANK", "")
    return int(rank) if os.environ.get("WORLD_SIZE", "1") != "1" and rank.isdecimal() else 0


@contextmanager
def process_group(device: torch.device) -> Iterator[Processes]:
    """Join the launched processes into one group for the block; NCCL if `device` is a GPU, else gloo."""
    if launched_count() == 1 or processes().is_distributed:
        yield processes()
        return
    try:
        from accelerate import PartialState
    except ImportError:
        raise InputError(
            f"{launched_count()} processes were started, which needs accelerate: pip install '.[scale]'."
        ) from None
    # Optimisers import torch._dynamo. If it is imported while the group exists, its threads outlive the group, and
    # sometimes one of them aborts the process at interpreter shutdown (torch 2.13).
    import_module("torch._dynamo")
    with _explained():
        state = PartialState(cpu=device.type == "cpu")
    yield processes()
    # Not after an error: other processes, which may wait for this one, end when it ends.
    processes().barrier()  # a launcher ends all processes when one ends
    state.destroy_process_group()


@contextmanager
def long_waits(group: Processes) -> Iterator[Callable[[bool], bool]]:
    """Yield `group.any` for work of unequal length: NCCL ends a run in which a process waits for ten minutes.

    The processes exchange the flag over gloo, which notices a process that has ended and waits for all others.
    """
    if not group.is_distributed:
        yield group.any
        return
    waiting = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)

    def any_flag(flag: bool) -> bool:
        total = torch.tensor(float(flag))
        with _explained():
            dist.all_reduce(total, group=waiting)
        return bool(total)

    yield any_flag
    dist.destroy_process_group(waiting)  # not after an error, as in `process_group`


_shared_batch: tuple[Processes, int] | None = None
"""The group and this process's number of samples while a batch is split among processes."""


@contextmanager
def shared_batch(group: Processes, samples: int) -> Iterator[None]:
    """Let `normal_like` draw for a batch of which this process has `samples`."""
    global _shared_batch
    _shared_batch = (group, samples) if group.is_distributed else None
    try:
        yield
    finally:
        _shared_batch = None


def normal_like(x: Float[Tensor, "n *shape"], generator: torch.Generator) -> Float[Tensor, "n *shape"]:
    """Draw standard normal numbers in the shape of `x`: a batch, or several copies of it in sequence.

    In a `shared_batch` every process draws for the whole batch and takes its part, so that each sample gets the same
    numbers as in a single process.
    """
    if _shared_batch is None:
        return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    group, samples = _shared_batch
    whole = (len(x) // samples, group.world_size * samples, *x.shape[1:])
    drawn = torch.randn(whole, generator=generator, device=x.device, dtype=x.dtype)
    return drawn[:, group.rank * samples : (group.rank + 1) * samples].flatten(0, 1)


def _reduce(tensor: Tensor, reduction: str) -> Tensor:
    """Return the sum or mean of a tensor over the processes."""
    from accelerate.utils import reduce

    with _explained():
        reduced: Tensor = reduce(tensor, reduction=reduction)
        return reduced


def _exchange_device() -> torch.device:
    """Return the device on which the group exchanges tensors."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of a broken connection into `PeerLostError`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        raise PeerLostError(
            "cannot reach the other processes of this run: one of them has ended or never started; see its own error "
            f"message ({' '.join(str(error).split())[:200]})."
        ) from error
