"""Values of JSON and TOML files checked against type annotations, and dataclasses made from them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def read_record(kind: type[Record], content: Mapping[str, Any]) -> Record:
    """A dataclass from the values that `dataclasses.asdict` and JSON made of it.

    Raises a ValueError if a value has another type than its field, a TypeError if a field is missing.
    """
    if not isinstance(content, dict):
        raise ValueError(f"expected the fields of {kind.__name__}, got {content!r:.60}")
    types = _types(kind)  # type: ignore[arg-type]  # mypy does not see that a type can be hashed
    if unknown := content.keys() - types.keys():
        raise ValueError(f"{kind.__name__} has no field {min(unknown)!r:.60}")
    return kind(**{name: _value(types[name], name, value) for name, value in content.items()})


_types = cache(get_type_hints)
"""The types of a dataclass's fields; they are evaluated once, since a file may hold thousands of records."""


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
    """Whether a value of JSON or TOML has the type; a bool is not a number, and numbers must be finite."""
    origin, parts = get_origin(kind), get_args(kind)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return number and isinstance(value, int) and abs(value) < 2**63
    if kind is float:
        return number and abs(value) <= sys.float_info.max
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Mapping:
        return isinstance(value, dict) and all(fits(item, parts[1]) for item in value.values())
    if origin is tuple and Ellipsis not in parts:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    if origin in (tuple, Sequence):
        return isinstance(value, tuple) and all(fits(item, parts[0]) for item in value)
    return kind is Any or (isinstance(kind, type) and isinstance(value, kind))
