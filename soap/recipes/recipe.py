"""A recipe: one model of the paper as a reproducible claim, read from TOML into frozen dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import Purification
from soap.errors import InputError, unknown
from soap.recipes.reading import allow_only, content_of, fill, name_of, section_of, text_of
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
    content = content_of(text, source)
    try:
        return _recipe(content, text)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _recipe(content: dict[str, Any], text: str) -> Recipe:
    allowed = ("name", "data", "model", "auxiliary", "training", "adversarial", "purifier")
    allow_only(content, allowed, "recipe")
    model, auxiliary = section_of(content, "model"), section_of(content, "auxiliary", optional=True)
    adversarial = section_of(content, "adversarial", optional=True)
    return Recipe(
        name=name_of(content),
        data=text_of(content, "data", "recipe"),
        architecture=text_of(model, "architecture", "[model]"),
        model={key: value for key, value in model.items() if key != "architecture"},
        task=text_of(auxiliary, "task", "[auxiliary]") if auxiliary else None,
        auxiliary={key: value for key, value in auxiliary.items() if key != "task"},
        training=fill(Schedule, section_of(content, "training"), "[training]"),
        adversarial=_attack(adversarial) if adversarial else None,
        purifier=fill(Purification, content["purifier"], "[purifier]") if "purifier" in content else None,
        text=text,
    )


def _attack(section: dict[str, Any]) -> Attack:
    name = text_of(section, "attack", "[adversarial]")
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    settings = {key: value for key, value in section.items() if key != "attack"}
    attack: Attack = fill(ATTACKS[name], settings, "[adversarial]")
    return attack
