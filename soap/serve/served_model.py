"""A served model: its weights, the names of its classes, and the attacks that requests may use."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from soap import zoo
from soap.attacks import Attack
from soap.auxiliary import JointModel
from soap.evaluation import PAPER
from soap.recipes import Recipe
from soap.recipes.attacks import attacks_by_name, paper_data_set
from soap.recipes.recipe import class_names

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
        given = {key: value for key, value in {"eps": eps, "steps": steps}.items() if value is not None}
        return attacks_by_name(self.attacks, [name], settings=given)[name]


def load_served_model(name: str, *, device: str | torch.device) -> ServedModel:
    """Load a bundled model by name, or a model from the path of a .safetensors file."""
    model, recipe = zoo.load(name, device=device), zoo.recipe(name)
    model.requires_grad_(False)  # once here, instead of in every call
    paper = PAPER[paper_data_set(recipe.data, recipe, model)]
    return ServedModel(
        model=model,
        recipe=recipe,
        classes=tuple(class_names(recipe, model.classes)),
        attacks={attack: paper[attack] for attack in OFFERED_ATTACKS},
    )
