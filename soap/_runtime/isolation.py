"""What a public call promises to leave alone.

Attacks and purifiers need a network in evaluation mode and gradients of the input only. They borrow the
network inside `isolated` and give it back as it was: mode of every submodule, which parameters take
gradients, and the global random state.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from soap.shapes import Tensor

_lock = threading.Lock()
_lent: dict[int, tuple[int, bool]] = {}
"""Of every module and parameter that is frozen now, by its `id`: by how many, and its flag when the first came."""


@contextmanager
def isolated(model: nn.Module | Callable[[Tensor], Tensor]) -> Iterator[None]:
    """What every public call runs in: the model `frozen`, the global random state restored on leaving."""
    with frozen(model), preserved_random_state():
        yield


@contextmanager
def frozen(model: nn.Module | Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Evaluation mode and frozen parameters inside; modes and flags as before once the last of several has left.

    A callable that is not an `nn.Module` is taken as it is: only its owner can prepare it.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    with _cleared(modules, "training"), _cleared(parameters, "requires_grad"):
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode alone; parameters may get gradients."""
    with _cleared(list(model.modules()), "training"):
        yield


@contextmanager
def _cleared(things: Sequence[nn.Module] | Sequence[nn.Parameter], flag: str) -> Iterator[None]:
    """The flag is False on all of them, until the last of several threads inside has left."""
    taken = []
    try:
        with _lock:
            for thing in things:
                have, was = _lent.get(id(thing), (0, getattr(thing, flag)))
                if getattr(thing, flag):
                    setattr(thing, flag, False)
                _lent[id(thing)] = have + 1, was
                taken.append(thing)
        yield
    finally:
        with _lock:
            for thing in taken:
                have, was = _lent.pop(id(thing))
                if have > 1:
                    _lent[id(thing)] = have - 1, was
                elif was:
                    setattr(thing, flag, True)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore torch's global generators on leaving (a stochastic model may draw from them inside)."""
    on_cuda = torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if on_cuda else []
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if on_cuda:
            torch.cuda.set_rng_state_all(cuda)
