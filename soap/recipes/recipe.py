"""A recipe: one model of the paper as a reproducible claim, read from TOML into frozen dataclasses."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import Purification
from soap.errors import InputError, call_with, unknown
from soap.training import Schedule

ATTACKS: dict[str, type[FGSM] | type[PGD]] = {"fgsm": FGSM, "pgd": PGD}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that makes a model: data set, network, auxiliary task, schedule, and purifier settings.

    model and auxiliary: the architecture's and the task's own options, checked when they are built. text: the
    TOML this came from, kept inside the weights.
    """

    name: str
    data: str
    architecture: str
    model: Mapping[str, Any]
    task: str | None
    auxiliary: Mapping[str, Any]
    training: Schedule
    adversarial: Attack | None
    purifier: Purification | None
    text: str


def parse(text: str, source: str) -> Recipe:
    """Read a recipe's TOML; `source` names it in errors."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not valid TOML: {error}.") from error
    try:
        return _recipe(content, text)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _recipe(content: dict[str, Any], text: str) -> Recipe:
    allowed = ("name", "data", "model", "auxiliary", "training", "adversarial", "purifier")
    _only(content, allowed, "recipe")
    model, auxiliary = _section(content, "model"), _section(content, "auxiliary", optional=True)
    adversarial = _section(content, "adversarial", optional=True)
    return Recipe(
        name=_name(content),
        data=_text(content, "data", "recipe"),
        architecture=_text(model, "architecture", "[model]"),
        model={key: value for key, value in model.items() if key != "architecture"},
        task=_text(auxiliary, "task", "[auxiliary]") if auxiliary else None,
        auxiliary={key: value for key, value in auxiliary.items() if key != "task"},
        training=_fill(Schedule, _section(content, "training"), "[training]"),
        adversarial=_attack(adversarial) if adversarial else None,
        purifier=_fill(Purification, content["purifier"], "[purifier]") if "purifier" in content else None,
        text=text,
    )


def _attack(section: dict[str, Any]) -> Attack:
    name = _text(section, "attack", "[adversarial]")
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    settings = {key: value for key, value in section.items() if key != "attack"}
    attack: Attack = _fill(ATTACKS[name], settings, "[adversarial]")
    return attack


def _fill(kind: Callable[..., Any], section: Any, where: str) -> Any:
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


def _only(section: Mapping[str, Any], allowed: tuple[str, ...] | list[str], where: str) -> None:
    for key in section:
        if key not in allowed:
            raise unknown(f"key in {where}", key, allowed)


def _section(content: Mapping[str, Any], key: str, *, optional: bool = False) -> dict[str, Any]:
    if key not in content and not optional:
        raise InputError(f"the section [{key}] is missing.")
    section = content.get(key, {})
    if not isinstance(section, dict):
        raise InputError(f"{key} is {section!r}, want a section [{key}].")
    return section


def _name(content: Mapping[str, Any]) -> str:
    """The model's name; it becomes part of file names, so it may not lead anywhere else."""
    name = _text(content, "name", "recipe")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"recipe has name = {name!r}, want letters, digits, '-', '_' and '.' alone.")
    return name


def _text(section: Mapping[str, Any], key: str, where: str) -> str:
    value = section.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} has {key} = {value!r}, want a name in quotes.")
    return value
