"""Options and sizes of untrusted recipes: checks against type annotations, and limits on what they build."""

import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from types import NoneType
from typing import Any, get_args, get_origin

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from soap._files.records import fits
from soap.errors import InputError, SoapError, call_with

TYPE_NAMES = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false"}


def call_typed(function: Callable[..., Any], options: Mapping[str, Any], kind: str) -> Any:
    """Return `function(**options)`; raise `InputError` for unknown, missing or wrongly typed options.

    `kind` describes the options in errors, e.g. "key in [model]".
    """
    check_types(function, options, kind)
    return call_with(function, dict(options), kind)


def check_types(function: Callable[..., Any], options: Mapping[str, Any], kind: str) -> None:
    """Raise `InputError` for an option whose type differs from the function's annotation."""
    for name, parameter in inspect.signature(function).parameters.items():
        checked = name in options and parameter.annotation is not parameter.empty
        if checked and not fits(options[name], parameter.annotation):
            expected = _type_name(parameter.annotation)
            raise InputError(f"{kind}: {name} is {options[name]!r:.80}; expected {expected}.")


def parse_number(text: str) -> float:
    """A number, or a fraction like 8/255; anything else raises `InputError`."""
    try:
        return float(Fraction(text.replace(" ", ""))) if "/" in text else float(text)
    except (ValueError, ArithmeticError):
        raise InputError(f"{text!r:.80} is not a number or a fraction like 8/255.") from None


def _type_name(annotation: Any) -> str:
    parts = [part for part in get_args(annotation) if part not in (Ellipsis, NoneType)]
    if get_origin(annotation) in (tuple, Sequence):
        return f"a list, each item {_type_name(parts[0])}"
    return " or ".join(map(_type_name, parts)) if parts else TYPE_NAMES.get(annotation, "another type")


@contextmanager
def build_errors(what: str) -> Iterator[None]:
    """Turn torch's errors about impossible sizes into an `InputError` that names `what`."""
    try:
        yield
    except SoapError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{what} cannot be built ({reason:.200}); check its sizes.") from error


@contextmanager
def parameter_limit(tensors: int) -> Iterator[None]:
    """Raise `InputError` when a network with more than `tensors` parameter tensors is built in this thread."""
    thread, count = threading.get_ident(), itertools.count(1)

    def check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if threading.get_ident() == thread and next(count) > tensors:
            raise InputError(f"the network has more than {tensors} parameter tensors; check its number of blocks.")

    hook = register_module_parameter_registration_hook(check)
    try:
        yield
    finally:
        hook.remove()
