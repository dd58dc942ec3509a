"""Calling with options that a stranger wrote: each is held to the type that the function says, before it is called."""

import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from soap.errors import InputError, call_with

WORDS = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}


def call_typed(function: Callable[..., Any], options: Mapping[str, Any], kind: str) -> Any:
    """As `soap.errors.call_with`, with a clear error for an option of the wrong type as well."""
    check_types(function, options, kind)
    return call_with(function, dict(options), kind)


def check_types(function: Callable[..., Any], options: Mapping[str, Any], kind: str) -> None:
    """Refuse options of another type than the function's annotations; `kind` names them, e.g. "key in [model]"."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name in options and not _fits(options[name], parameter.annotation):
            raise InputError(f"{kind}: {name} is {options[name]!r:.80}, want {_words(parameter.annotation)}.")


def _fits(value: Any, wanted: Any) -> bool:
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple and Ellipsis not in parts:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if origin in (tuple, Sequence):
        return isinstance(value, tuple) and all(_fits(item, parts[0]) for item in value)
    if wanted is float:  # a whole number will do; NaN, which compares with nothing, will not
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and -sys.float_info.max <= value <= sys.float_info.max
    if wanted is int:  # torch takes no larger ones
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, wanted) if wanted in (str, bool, types.NoneType) else True


def _words(wanted: Any) -> str:
    parts = [part for part in get_args(wanted) if part not in (Ellipsis, types.NoneType)]
    if get_origin(wanted) in (tuple, Sequence):
        return f"a list, each of it {_words(parts[0])}"
    return " or ".join(map(_words, parts)) if parts else WORDS.get(wanted, "something else")
