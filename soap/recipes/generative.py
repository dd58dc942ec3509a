"""Generative models by recipe: one TOML file each, in the folder `generative`."""

import inspect
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import nn

from soap._runtime.isolation import preserved_random_state
from soap.errors import unknown
from soap.models import DDPM, Autoencoder, Generator
from soap.models.pixelcnn import PixelCNN
from soap.purifiers import DefenseGAN, DiffPure, PixelDefend, Purified, Reformer
from soap.recipes.recipe import GenerativeRecipe, RecipeFolder, parse_generative
from soap.recipes.typed_options import build_errors, call_typed
from soap.shapes import Tensor
from soap.specs import DefenceSpec, defence_spec
from soap.training import Objective, WganGp
from soap.training.objectives import Denoising, Likelihood, NoisePrediction

Purify = Callable[[Tensor], Purified]


class Kind(NamedTuple):
    """One kind of generative model: its network, its training objective, and the purifier that uses it."""

    model: Callable[..., nn.Module]
    objective: Callable[..., Objective]
    purifier: Callable[..., Purify]


KINDS = {
    "wgan": Kind(Generator, WganGp, DefenseGAN),
    "pixelcnn": Kind(PixelCNN, Likelihood, PixelDefend),
    "ddpm": Kind(DDPM, NoisePrediction, DiffPure),
    "autoencoder": Kind(Autoencoder, Denoising, Reformer),
}

_folder = RecipeFolder(resources.files("soap.recipes") / "generative", "recipe of a generative model", parse_generative)
names, read, parse = _folder.names, _folder.read, parse_generative


def build(recipe: GenerativeRecipe) -> nn.Module:
    """Return the recipe's network with initial weights, which depend only on its seed.

    It has the recipe's name and purifier settings; see `attach_purifier`.
    """
    model = network(recipe)
    attach_purifier(recipe, model)
    return model


def attach_purifier(recipe: GenerativeRecipe, model: Any) -> None:
    """Set the model's `name` and, as `purification`, the purifier's settings, which are checked here."""
    model.name, model.purification = recipe.name, recipe.purifier
    purifier(recipe, model)


def network(recipe: GenerativeRecipe) -> nn.Module:
    """Return the network of `build` without name and settings."""
    with preserved_random_state(), build_errors(f"the {recipe.kind} of {recipe.name}"):
        torch.manual_seed(recipe.training.seed)
        model: nn.Module = call_typed(_kind(recipe).model, recipe.model, f"option of a {recipe.kind}")
        # Convolutions are faster in this layout.
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def purifier(recipe: GenerativeRecipe, model: nn.Module, **overrides: Any) -> Purify:
    """Return the purifier that uses the recipe's model, with the recipe's settings and `overrides`."""
    make_purifier = partial(_kind(recipe).purifier, model)
    parameters = inspect.signature(make_purifier).parameters
    for name in overrides:
        if name not in parameters:
            raise unknown("purifier setting", name, parameters)
    made: Purify = call_typed(make_purifier, {**recipe.purifier, **overrides}, "key in [purifier]")
    return made


def purifier_spec(recipe: GenerativeRecipe) -> DefenceSpec:
    """Return the purifier that uses a generative model, as result rows store it."""
    return _purifier_spec(recipe.text)


@cache  # building the network takes a fraction of a second
def _purifier_spec(text: str) -> DefenceSpec:
    recipe = parse(text, "recipe")
    return defence_spec(purifier(recipe, build(recipe)))


def objective(recipe: GenerativeRecipe, device: torch.device) -> Objective:
    """Return the training objective of the recipe's network, with initial weights."""
    maker = partial(_kind(recipe).objective, build(recipe).to(device), recipe.training)
    made: Objective = call_typed(maker, recipe.objective, "key in [objective]")
    return made


def _kind(recipe: GenerativeRecipe) -> Kind:
    if recipe.kind not in KINDS:
        raise unknown("kind of generative model", recipe.kind, KINDS)
    return KINDS[recipe.kind]
