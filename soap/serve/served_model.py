"""A model that is served: its weights, what its classes are called, and what may be asked of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from soap import zoo
from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import JointModel
from soap.data.sources import SOURCES
from soap.errors import InputError, unknown
from soap.evaluation import PAPER
from soap.recipes import Recipe

OFFERED = ("fgsm", "pgd", "df")
"""Of the paper's attacks those that take a second at most. Carlini and Wagner's takes longer than a request may."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A loaded model with the names of its classes and the paper's attacks on its data set."""

    model: JointModel
    recipe: Recipe
    classes: tuple[str, ...]
    attacks: Mapping[str, Attack]

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.model.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return self.model.input_shape

    def attack(self, name: str, *, eps: float | None = None, steps: int | None = None) -> Attack:
        """An attack by name, with the paper's settings for what is not given."""
        if name not in self.attacks:
            raise unknown("attack", name, self.attacks)
        attack = self.attacks[name]
        given = {key: value for key, value in {"eps": eps, "steps": steps}.items() if value is not None}
        takes = ("eps", "steps") if isinstance(attack, PGD) else ("eps",) if isinstance(attack, FGSM) else ()
        for key in given:
            if key not in takes:
                takers = "fgsm and pgd" if key == "eps" else "pgd"
                raise InputError(f"{key} is a setting of {takers}, and the attack is {name}; leave it out.")
        return replace(attack, **given) if given else attack  # type: ignore[type-var]


def load(name: str, *, device: str | torch.device) -> Subject:
    """The model called `name`, or in a file of that path."""
    model, recipe = zoo.load(name, device=device), zoo.recipe(name)
    model.requires_grad_(False)  # or every call would have to freeze it and give it back
    known = SOURCES[recipe.data].classes if recipe.data in SOURCES else ()
    classes = tuple(known) if len(known) == model.classes else tuple(map(str, range(model.classes)))
    likeness = recipe.data if recipe.data in PAPER else "mnist" if model.input_shape[0] == 1 else "cifar10"
    attacks = {attack: PAPER[likeness][attack] for attack in OFFERED}
    return Subject(model=model, recipe=recipe, classes=classes, attacks=attacks)
