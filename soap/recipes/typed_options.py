"""Check untrusted options, e.g. of a TOML table, against the type annotations of the function that takes them."""

import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Union, get_args, get_origin

from soap.errors import InputError, call_with

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
        if name in options and not _has_type(options[name], parameter.annotation):
            expected = _type_name(parameter.annotation)
            raise InputError(f"{kind}: {name} is {options[name]!r:.80}; expected {expected}.")


def python_value(value: Any) -> Any:
    """Return a TOML value with fractions like "8/255" as numbers and lists as tuples."""
    if isinstance(value, list):
        return tuple(python_value(item) for item in value)
    return parse_number(value) if isinstance(value, str) and "/" in value else value


def parse_number(text: str) -> float:
    """A number, or a fraction like 8/255; anything else raises `InputError`."""
    try:
        return float(Fraction(text.replace(" ", ""))) if "/" in text else float(text)
    except (ValueError, ArithmeticError):
        raise InputError(f"{text!r:.80} is not a number or a fraction like 8/255.") from None


def python_values(table: Mapping[str, Any], *, without: str = "") -> dict[str, Any]:
    """Return a TOML table, except for the key `without`, with `python_value` applied to each value."""
    return {key: python_value(value) for key, value in table.items() if key != without}


def _has_type(value: Any, annotation: Any) -> bool:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(_has_type(value, part) for part in parts)
    if origin is tuple and Ellipsis not in parts:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_has_type, value, parts))
    if origin in (tuple, Sequence):
        return isinstance(value, tuple) and all(_has_type(item, parts[0]) for item in value)
    if annotation is float:  # integers are allowed, NaN and infinity are not
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and -sys.float_info.max <= value <= sys.float_info.max
    if annotation is int:  # torch accepts 64 bits
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, annotation) if annotation in (str, bool, types.NoneType) else True


def _type_name(annotation: Any) -> str:
    parts = [part for part in get_args(annotation) if part not in (Ellipsis, types.NoneType)]
    if get_origin(annotation) in (tuple, Sequence):
        return f"a list, each item {_type_name(parts[0])}"
    return " or ".join(map(_type_name, parts)) if parts else TYPE_NAMES.get(annotation, "another type")
