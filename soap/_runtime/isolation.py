"""Use a model without changing it: eval mode, frozen parameters and the global random state.

Attacks and purifiers need a network in eval mode and gradients of the input only. Inside `isolated` they have it; on
leaving, the mode of every submodule, the `requires_grad` flag of every parameter and the global random state are
restored.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from soap.shapes import Tensor

_lock = threading.Lock()
_cleared: dict[int, tuple[int, bool]] = {}
"""For the `id` of each module and parameter whose flag is cleared: the number of users, and the flag's first value."""


@contextmanager
def isolated(model: nn.Module | Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Freeze the model and restore the global random state on leaving; every public call runs in this context."""
    with frozen(model), preserved_random_state():
        yield


@contextmanager
def frozen(model: nn.Module | Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Set eval mode and freeze the parameters; restore both when the last of several threads leaves.

    A callable that is not an `nn.Module` is used as it is: only the caller can prepare it.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    with _flag_cleared(modules, "training"), _flag_cleared(parameters, "requires_grad"):
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set eval mode only; parameters may still receive gradients."""
    with _flag_cleared(list(model.modules()), "training"):
        yield


@contextmanager
def _flag_cleared(objects: Sequence[nn.Module] | Sequence[nn.Parameter], flag: str) -> Iterator[None]:
    """Set the flag of all objects to False; restore it when the last of several threads leaves."""
    entered = []
    try:
        with _lock:
            for item in objects:
                users, before = _cleared.get(id(item), (0, getattr(item, flag)))
                if getattr(item, flag):
                    setattr(item, flag, False)
                _cleared[id(item)] = users + 1, before
                entered.append(item)
        yield
    finally:
        with _lock:
            for item in entered:
                users, before = _cleared.pop(id(item))
                if users > 1:
                    _cleared[id(item)] = users - 1, before
                elif before:
                    setattr(item, flag, True)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore torch's global random generators on leaving: a stochastic model may draw from them."""
    used = torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(range(torch.cuda.device_count()) if used else (), device_type="cuda"):
        yield
