"""What recipes of every kind are read with: sections, names and numbers of TOML, and errors that say where."""

import re
import tomllib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from soap._files import atomic
from soap.errors import FileError, InputError, unknown
from soap.recipes.calling import call_typed


def text_in(path: Path) -> str:
    """The text of a recipe's file."""
    try:
        with atomic.file_errors(path):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 text ({error}); want a recipe in TOML.") from error


LONGEST = 2**14
"""Letters of a recipe at most, ten times those of ours: for a long one of brackets the parser takes for ever."""


def content_of(text: str, source: str) -> dict[str, Any]:
    """What a recipe's TOML says; `source` names it in errors."""
    if len(text) > LONGEST:
        raise InputError(f"{source}: the recipe has {len(text):,} letters, want at most {LONGEST:,}.")
    try:
        return tomllib.loads(text)
    # Beside its own error tomllib lets those of Python pass: numbers of thousands of digits, lists in lists in lists.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid TOML: {error}.") from error


def fill(kind: Callable[..., Any], section: Any, where: str) -> Any:
    """A dataclass from a TOML table; fractions like "8/255" are numbers, lists are tuples."""
    if not isinstance(section, dict):
        raise InputError(f"{where} is {section!r}, want a table.")
    return call_typed(kind, {key: plain(value) for key, value in section.items()}, f"key in {where}")


def plain(value: Any) -> Any:
    """A TOML value as Python's: "8/255" becomes a number and a list a tuple."""
    if isinstance(value, list):
        return tuple(plain(item) for item in value)
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value.replace(" ", "")))
        except (ValueError, ArithmeticError) as error:
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
