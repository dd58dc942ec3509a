"""The processes of one run: how many there are, which part of the work is whose, and how they agree.

`accelerate launch` and `torchrun` start one command several times and tell each process its number by the environment;
accelerate makes a group of them. Inside it training and evaluation share the work out, and every process must make the
same calls in the same order. One process alone is the rule: then nothing is imported, wrapped or waited for.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.distributed as dist

from soap.errors import InputError, SoapError
from soap.shapes import Float, Tensor


class DesertedError(SoapError):
    """Another process of the run has ended, so that this one cannot go on."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's number, from 0, and how many there are; what they do together."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one process that writes files and speaks."""
        return self.rank == 0

    @property
    def many(self) -> bool:
        """Whether there is more than one."""
        return self.world > 1

    def part(self, rows: int) -> slice:
        """This process's rows of a batch, which is shared out evenly, in order."""
        if rows % self.world:
            raise InputError(
                f"a batch of {rows} cannot be shared out evenly among {self.world} processes; choose a batch or a "
                "number of processes so that one divides by the other."
            )
        share = rows // self.world
        return slice(self.rank * share, (self.rank + 1) * share)

    def any(self, flag: bool) -> bool:
        """Whether any process says so: the same answer in all of them."""
        if not self.many:
            return flag
        said = torch.tensor(float(flag), device=_meeting_place())
        with _explained():
            dist.all_reduce(said)
            return bool(said)  # waits for the device

    def wait(self) -> None:
        """Until all processes have come this far."""
        self.any(False)

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Inside, the first process is alone; the others come in when it has left, be it by an error."""
        if not self.first:
            self.wait()
        try:
            yield
        finally:
            if self.first:
                self.wait()

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its mean over the processes, in place, all of them in one message."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _explained():
            dist.all_reduce(flat)
        flat /= self.world
        means = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean.view_as(tensor))

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by the first process's, in place."""
        for tensor in tensors if self.many else ():
            whole = tensor.contiguous()
            with _explained():
                dist.broadcast(whole, 0)
            tensor.copy_(whole)

    def put_together(self, table: Tensor) -> None:
        """Fill the table, in place, with what others have in it; every entry is zero in all processes but one.

        Bytes are added, not numbers, so that every value arrives to the bit.
        """
        if self.many:
            whole = table.to(_meeting_place()).contiguous()
            with _explained():
                dist.all_reduce(whole.view(-1).view(torch.uint8))
            table.copy_(whole)

    def told_by_first(self, text: str) -> str:
        """The first process's text, in all of them."""
        if not self.many:
            return text
        content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=_meeting_place())
        length = torch.tensor(len(content), device=content.device)
        self.copy_from_first([length])
        content = content if self.first else content.new_empty(int(length))
        self.copy_from_first([content])
        return bytes(content.tolist()).decode()


def here() -> Ranks:
    """The group that this process belongs to; of one, unless it was made by `joined` or by the caller's own script."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(rank=dist.get_rank(), world=dist.get_world_size())
    return Ranks()


def started() -> int:
    """How many processes the launcher has started, as it says in the environment; 1 without one."""
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdecimal() or (world != "1" and not os.environ.get("RANK", "").isdecimal()):
        raise InputError(
            f"WORLD_SIZE is {world!r} and RANK is {os.environ.get('RANK')!r}; start several processes by "
            "`accelerate launch -m soap ...` or `torchrun -m soap ...`, or unset both for one."
        )
    return int(world)


def number() -> int:
    """This process's number, from 0, as its launcher says in the environment, joined or not."""
    rank = os.environ.get("RANK", "")
    return int(rank) if os.environ.get("WORLD_SIZE", "1") != "1" and rank.isdecimal() else 0


def place_on_machine() -> int:
    """Which of its machine's processes this one is, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Inside, the processes that a launcher started are one group, which works on GPUs if `device` is one."""
    if started() == 1 or here().many:
        yield here()
        return
    try:
        from accelerate import PartialState
    except ImportError:
        raise InputError(
            f"{started()} processes were started, which takes accelerate: pip install 'soap-defense[scale]'."
        ) from None
    # Optimisers load this. Loaded when the group is there, it keeps the group's threads beyond the group's end, and now
    # and then one of them aborts the process while Python shuts down (torch 2.13).
    import_module("torch._dynamo")
    with _explained():
        group = PartialState(cpu=device.type == "cpu")
    yield here()
    # Not after an error: the others, who may be waiting for this process, end when it does.
    here().wait()  # a launcher ends all processes when one does
    group.destroy_process_group()


_sharing: tuple[Ranks, int] | None = None
"""The group and the rows of this process in a batch that is being shared out."""


@contextmanager
def sharing(ranks: Ranks, rows: int) -> Iterator[None]:
    """Inside, `normal` draws for a batch of which this process has `rows`."""
    global _sharing
    _sharing = (ranks, rows) if ranks.many else None
    try:
        yield
    finally:
        _sharing = None


def normal(x: Float[Tensor, "n *shape"], generator: torch.Generator) -> Float[Tensor, "n *shape"]:
    """Standard normal numbers in the shape of `x`: a batch, or several copies of it one after the other.

    Where a batch is shared out, every process draws for the whole and takes its rows: they get the same numbers as in
    one process alone.
    """
    if _sharing is None:
        return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    ranks, rows = _sharing
    whole = (len(x) // rows, ranks.world * rows, *x.shape[1:])
    drawn = torch.randn(whole, generator=generator, device=x.device, dtype=x.dtype)
    return drawn[:, ranks.rank * rows : (ranks.rank + 1) * rows].flatten(0, 1)


def _meeting_place() -> torch.device:
    """Where tensors must lie for the group to exchange them."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        raise DesertedError(
            "the processes of this run cannot reach each other: one of them has ended, or never began, and its own "
            f"message says why ({' '.join(str(error).split())[:200]})."
        ) from error
