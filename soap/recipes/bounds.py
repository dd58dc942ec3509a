"""Building a network at a stranger's word: sizes that make no sense, or no end, are refused."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from soap.errors import InputError, SoapError


@contextmanager
def building(what: str) -> Iterator[None]:
    """Sizes that fit their types may still fit no network: torch's own complaints become ours."""
    try:
        yield
    except SoapError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{what} cannot be built ({reason:.200}); check its sizes.") from error


@contextmanager
def at_most(parameters: int) -> Iterator[None]:
    """Stop whoever builds a network of more parameters (tensors, not numbers) than that inside."""
    here, made = threading.get_ident(), itertools.count(1)

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if threading.get_ident() == here and next(made) > parameters:
            raise InputError(f"the network has more than {parameters} parameters; check how many blocks it has.")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
