"""Purifiers by name, each ready to stand before a classifier."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from soap import zoo
from soap.auxiliary import JointModel
from soap.errors import InputError, call_with, unknown
from soap.purifiers import SOAP, AntiAdversary, Hedge, Purifier
from soap.recipes import generative
from soap.recipes.generative import GenerativeRecipe
from soap.specs import PriorTraining

SOAP_NAME = "soap"

BY_CLASSIFIER: dict[str, Callable[..., Purifier]] = {SOAP_NAME: SOAP, "anti-adversary": AntiAdversary, "hedge": Hedge}
"""Those that ask the classifier itself."""


class Way(NamedTuple):
    """The kind of prior, a generative model, that a purifier uses, and the one it uses unless another is named."""

    kind: str
    prior: str


BY_PRIOR = {
    "defense-gan": Way(kind="wgan", prior="defense-gan-mnist"),
    "pixeldefend": Way(kind="pixelcnn", prior="pixeldefend-cifar10"),
}

NAMES = (*BY_CLASSIFIER, *BY_PRIOR)

DRAWS = ("hedge", "defense-gan")
"""Those that begin at random, and so take a seed."""


def before(
    model: JointModel, name: str, settings: Mapping[str, Any], *, prior: str | Path | None = None, seed: int = 0
) -> Purifier:
    """The purifier called `name`, to stand before `model`, on its device.

    settings: other than its own, e.g. {"eps": 8 / 255}. prior: the generative model's name or file, where it uses one.
    """
    if name not in NAMES:
        raise unknown("purifier", name, NAMES)
    if name in BY_PRIOR:
        network, purify = by_prior(name, settings, prior=prior, device=next(model.parameters()).device, seed=seed)
        shape: Any = network.input_shape
        if tuple(shape) != tuple(model.input_shape):
            raise InputError(
                f"{network.name} was trained for images {list(shape)}, but {model.name} takes "
                f"{list(model.input_shape)}; choose a prior of that size."
            )
        return purify
    if prior is not None:
        raise InputError(f"{name} uses no prior, got {prior}; leave it out, or purify by {' or '.join(BY_PRIOR)}.")
    made: Purifier = call_with(partial(BY_CLASSIFIER[name], model), _given(name, settings, seed), f"setting of {name}")
    return made


def by_prior(
    name: str,
    settings: Mapping[str, Any],
    *,
    prior: str | Path | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> tuple[nn.Module, Purifier]:
    """A generative model and the purifier called `name` that uses it; it needs no classifier. See `before`."""
    if name not in BY_PRIOR:
        raise unknown("purifier by a generative model", name, BY_PRIOR)
    given, way = _given(name, settings, seed), BY_PRIOR[name]
    recipe = zoo.prior_recipe(prior or way.prior)
    if recipe.kind != way.kind:
        raise InputError(f"{recipe.name} is a {recipe.kind}, but {name} uses a {way.kind}; try {way_of(recipe)}.")
    model = load_prior(prior or way.prior, device=device)
    return model, generative.purifier(recipe, model, **given)


def load_prior(name: str | Path, *, device: str | torch.device = "cpu") -> nn.Module:
    """A trained generative model as `zoo.load_prior` has it, with a `training_spec` that describes its training."""
    model, recipe = zoo.load_prior(name, device=device), zoo.prior_recipe(name)
    made = PriorTraining(name=recipe.name, epochs=recipe.training.epochs, seed=recipe.training.seed)
    setattr(model, "training_spec", made)  # noqa: B010  (mypy knows modules by their tensors)
    return model


def way_of(recipe: GenerativeRecipe) -> str:
    """The name of the purifier that uses a recipe's model."""
    return next(name for name, way in BY_PRIOR.items() if way.kind == recipe.kind)


def _given(name: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The settings, and a seed for those that draw."""
    if name != SOAP_NAME and isinstance(settings.get("eps"), str):
        raise InputError(f"eps={settings['eps']!r} is a choice of SOAP's; {name} takes a number or has no radius.")
    return {**({"seed": seed} if name in DRAWS else {}), **settings}
