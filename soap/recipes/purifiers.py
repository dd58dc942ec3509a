"""Purifiers by name: SOAP, anti-adversary, Hedge, Defense-GAN and PixelDefend for a given classifier."""

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
from soap.purifiers.soap import CHOICES
from soap.recipes import generative
from soap.recipes.generative import GenerativeRecipe
from soap.recipes.typed_options import parse_number

SOAP_NAME = "soap"

BY_CLASSIFIER: dict[str, Callable[..., Purifier]] = {SOAP_NAME: SOAP, "anti-adversary": AntiAdversary, "hedge": Hedge}
"""Purifiers that use the classifier itself."""


class PriorUse(NamedTuple):
    """The kind of prior (generative model) that a purifier uses, and its default prior."""

    kind: str
    prior: str


BY_PRIOR = {
    "defense-gan": PriorUse(kind="wgan", prior="defense-gan-mnist"),
    "pixeldefend": PriorUse(kind="pixelcnn", prior="pixeldefend-cifar10"),
}

NAMES = (*BY_CLASSIFIER, *BY_PRIOR)

RANDOM = ("hedge", "defense-gan")
"""Purifiers with a random start, which take a seed."""


def for_model(
    model: JointModel, name: str, settings: Mapping[str, Any], *, prior: str | Path | None = None, seed: int = 0
) -> Purifier:
    """Return the purifier called `name` for `model`, on the model's device.

    settings: overrides of its defaults, e.g. {"eps": 8 / 255}. prior: name or file of the generative model, if it uses
    one.
    """
    if name not in NAMES:
        raise unknown("purifier", name, NAMES)
    if name in BY_PRIOR:
        network, purify = by_prior(name, settings, prior=prior, device=next(model.parameters()).device, seed=seed)
        shape: Any = network.input_shape
        if tuple(shape) != tuple(model.input_shape):
            raise InputError(
                f"{network.name} was trained on images {list(shape)}, but {model.name} expects "
                f"{list(model.input_shape)}; choose a prior of that size."
            )
        return purify
    if prior is not None:
        raise InputError(f"{name} uses no prior, got {prior}; leave it out, or use {' or '.join(BY_PRIOR)}.")
    made: Purifier = call_with(
        partial(BY_CLASSIFIER[name], model), _with_seed(name, settings, seed), f"setting of {name}"
    )
    return made


def by_prior(
    name: str,
    settings: Mapping[str, Any],
    *,
    prior: str | Path | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> tuple[nn.Module, Purifier]:
    """Return a generative model and the purifier called `name` that uses it, without a classifier; see `for_model`."""
    if name not in BY_PRIOR:
        raise unknown("purifier with a generative model", name, BY_PRIOR)
    options, use = _with_seed(name, settings, seed), BY_PRIOR[name]
    recipe = zoo.prior_recipe(prior or use.prior)
    if recipe.kind != use.kind:
        raise InputError(f"{recipe.name} is a {recipe.kind}, but {name} uses a {use.kind}; try {purifier_of(recipe)}.")
    model = zoo.load_prior(prior or use.prior, device=device)
    return model, generative.purifier(recipe, model, **options)


def purifier_of(recipe: GenerativeRecipe) -> str:
    """Return the name of the purifier that uses a recipe's model."""
    return next(name for name, use in BY_PRIOR.items() if use.kind == recipe.kind)


def _with_seed(name: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the settings, with a seed for purifiers with a random start."""
    if name != SOAP_NAME and isinstance(settings.get("eps"), str):
        raise InputError(f"eps={settings['eps']!r} is an option of SOAP only; {name} takes a number or has no radius.")
    return {**({"seed": seed} if name in RANDOM else {}), **settings}


def parse_radius(text: str) -> float | str:
    """A purification radius: a name like "min-aux", a number, or a fraction like 8/255."""
    if text in CHOICES:
        return text
    try:
        return parse_number(text)
    except InputError:
        names = ", ".join(CHOICES)
        raise InputError(f"eps_pfy is {text!r}, expected {names}, a number, or a fraction like 8/255.") from None
