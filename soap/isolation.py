"""What a public call promises to leave alone.

Attacks and purifiers need a network in evaluation mode and gradients of the input only. They borrow the
network inside `untouched` and give it back as it was: mode of every submodule, which parameters take
gradients, and the global random state.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from soap.shapes import Tensor


@contextmanager
def untouched(model: nn.Module | Callable[[Tensor], Tensor]) -> Iterator[None]:
    """What every public call runs in: the model `borrowed`, the global random state restored on leaving."""
    with borrowed(model), same_random_state():
        yield


@contextmanager
def borrowed(model: nn.Module | Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Evaluation mode and frozen parameters inside; modes and flags as before on leaving.

    A callable that is not an `nn.Module` is taken as it is: only its owner can prepare it.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    training = [m for m in modules if m.training]
    learning = [p for m in modules for p in m._parameters.values() if p is not None and p.requires_grad]
    with ExitStack() as leave:
        for module in training:
            module.training = False
            leave.callback(setattr, module, "training", True)
        for parameter in learning:
            parameter.requires_grad_(False)
            leave.callback(parameter.requires_grad_, True)
        yield


@contextmanager
def same_random_state() -> Iterator[None]:
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
