"""What recipes of every kind are read with: sections, names and numbers of TOML, and errors that say where."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from soap.errors import InputError, call_with, unknown


def fill(kind: Callable[..., Any], section: Any, where: str) -> Any:
    """A dataclass from a TOML table; fractions like "8/255" are numbers, lists are tuples."""
    if not isinstance(section, dict):
        raise InputError(f"{where} is {section!r}, want a table.")
    return call_with(kind, {key: plain(value) for key, value in section.items()}, f"key in {where}")


def plain(value: Any) -> Any:
    """A TOML value as Python's: "8/255" becomes a number and a list a tuple."""
    if isinstance(value, list):
        return tuple(plain(item) for item in value)
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value.replace(" ", "")))
        except (ValueError, ZeroDivisionError) as error:
            raise InputError(f"{value!r} is not a number or a fraction like '8/255'.") from error
    return value


def allow_only(section: Mapping[str, Any], allowed: tuple[str, ...] | list[str], where: str) -> None:
    """Refuse keys that nobody reads."""
    for key in section:
        if key not in allowed:
            raise unknown(f"key in {where}", key, allowed)


def section_of(content: Mapping[str, Any], key: str, *, optional: bool = False) -> dict[str, Any]:
    """The table `[key]`; empty where it is missing and may be."""
    if key not in content and not optional:
        raise InputError(f"the section [{key}] is missing.")
    section = content.get(key, {})
    if not isinstance(section, dict):
        raise InputError(f"{key} is {section!r}, want a section [{key}].")
    return section


def name_of(content: Mapping[str, Any]) -> str:
    """The model's name; it becomes part of file names, so it may not lead anywhere else."""
    name = text_of(content, "name", "recipe")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"recipe has name = {name!r}, want letters, digits, '-', '_' and '.' alone.")
    return name


def text_of(section: Mapping[str, Any], key: str, where: str) -> str:
    """A name that must be there."""
    value = section.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} has {key} = {value!r}, want a name in quotes.")
    return value
