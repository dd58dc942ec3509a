"""A served model: its weights, the names of its classes, and the attacks that requests may use."""

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

OFFERED_ATTACKS = ("fgsm", "pgd", "df")
"""The paper's attacks that finish within a request's deadline; Carlini and Wagner's takes longer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A loaded model, the names of its classes, and the paper's attacks for its data set."""

    model: JointModel
    recipe: Recipe
    classes: tuple[str, ...]
    attacks: Mapping[str, Attack]

    @property
    def name(self) -> str:
        """Name of the model in requests."""
        return self.model.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return self.model.input_shape

    def attack(self, name: str, *, eps: float | None = None, steps: int | None = None) -> Attack:
        """An attack by name, with the paper's settings for those not given."""
        if name not in self.attacks:
            raise unknown("attack", name, self.attacks)
        attack = self.attacks[name]
        given = {key: value for key, value in {"eps": eps, "steps": steps}.items() if value is not None}
        settings = ("eps", "steps") if isinstance(attack, PGD) else ("eps",) if isinstance(attack, FGSM) else ()
        for key in given:
            if key not in settings:
                attacks = "fgsm and pgd" if key == "eps" else "pgd"
                raise InputError(f"{key} is a setting of {attacks}, but the attack is {name}; leave it out.")
        return replace(attack, **given) if given else attack  # type: ignore[type-var]


def load_served_model(name: str, *, device: str | torch.device) -> ServedModel:
    """Load a bundled model by name, or a model from the path of a .safetensors file."""
    model, recipe = zoo.load(name, device=device), zoo.recipe(name)
    model.requires_grad_(False)  # once here, instead of in every call
    names = SOURCES[recipe.data].classes if recipe.data in SOURCES else ()
    classes = tuple(names) if len(names) == model.classes else tuple(map(str, range(model.classes)))
    settings_of = recipe.data if recipe.data in PAPER else "mnist" if model.input_shape[0] == 1 else "cifar10"
    attacks = {attack: PAPER[settings_of][attack] for attack in OFFERED_ATTACKS}
    return ServedModel(model=model, recipe=recipe, classes=classes, attacks=attacks)
