"""Dataclasses read from JSON values, with the types of their fields checked."""

import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def read_record(kind: type[Record], content: Mapping[str, Any]) -> Record:
    """A dataclass from the values that `dataclasses.asdict` and JSON made of it.

    ValueError where a value has another type than its field, TypeError where a field is missing.
    """
    if not isinstance(content, dict):
        raise ValueError(f"expected the fields of {kind.__name__}, got {content!r:.60}")
    types = get_type_hints(kind)
    if unknown := content.keys() - types.keys():
        raise ValueError(f"{kind.__name__} has no field {min(unknown)!r:.60}")
    return kind(**{name: _value(types[name], name, value) for name, value in content.items()})


def _value(kind: Any, name: str, value: Any) -> Any:
    for each in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if isinstance(each, type) and is_dataclass(each) and isinstance(value, dict):
            return read_record(each, value)
        if get_origin(each) is tuple and isinstance(value, list | tuple):
            return tuple(_value(get_args(each)[0], name, item) for item in value)
        if fits(value, each):
            return value
    raise ValueError(f"its {name} is {value!r:.60}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value has the type; a bool is not a number, and numbers must be finite."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return number and isinstance(value, int) and abs(value) < 2**63
    if kind is float:
        return number and abs(value) <= sys.float_info.max
    if get_origin(kind) is Mapping:
        of = get_args(kind)[1]
        return isinstance(value, dict) and (of is Any or all(fits(item, of) for item in value.values()))
    return isinstance(value, kind) if isinstance(kind, type) else False
