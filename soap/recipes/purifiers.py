"""Purifiers by name, for a given classifier, and classifiers around a classifier."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from soap import zoo
from soap.auxiliary import JointModel
from soap.errors import InputError, unknown
from soap.purifiers import (
    SOAP,
    AntiAdversary,
    BitDepth,
    EnergyDescent,
    Hedge,
    JpegCompression,
    MedianFilter,
    Purifier,
    Smoothing,
    ViewAverage,
)
from soap.purifiers.purifier import ClassifierWrapper
from soap.purifiers.soap import CHOICES
from soap.recipes import generative
from soap.recipes.recipe import GenerativeRecipe
from soap.recipes.typed_options import call_typed, parse_number

SOAP_NAME = "soap"

BY_CLASSIFIER: dict[str, Callable[..., Purifier]] = {
    SOAP_NAME: SOAP,
    "anti-adversary": AntiAdversary,
    "hedge": Hedge,
    "energy": EnergyDescent,
}
"""Purifiers that use the classifier itself."""

FILTERS: dict[str, Callable[..., Purifier]] = {
    "median": MedianFilter,
    "bit-depth": BitDepth,
    "jpeg": JpegCompression,
}
"""Purifiers that use no network."""

WRAPPERS: dict[str, Callable[..., ClassifierWrapper]] = {"views": ViewAverage, "smoothing": Smoothing}
"""Classifiers around the classifier: they change the logits instead of the image."""


class PriorUse(NamedTuple):
    """The kind of prior (generative model) that a purifier uses, and its default prior."""

    kind: str
    prior: str


BY_PRIOR = {
    "defense-gan": PriorUse(kind="wgan", prior="defense-gan-mnist"),
    "pixeldefend": PriorUse(kind="pixelcnn", prior="pixeldefend-cifar10"),
    "autoencoder": PriorUse(kind="autoencoder", prior="autoencoder-mnist"),
    "diffusion": PriorUse(kind="ddpm", prior="ddpm-mnist"),
}

NAMES = (*BY_CLASSIFIER, *BY_PRIOR, *FILTERS, *WRAPPERS)

RANDOM = ("hedge", "defense-gan")
"""Purifiers with a random start, which take a seed."""


def purifier_by_name(
    model: JointModel,
    name: str,
    eps: float | str | None = None,
    *,
    prior: str | Path | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Purifier | ClassifierWrapper:
    """Return the purifier called `name` for `model`, or the classifier around it, on the model's device.

    eps: None keeps its own radius. settings: overrides of its other defaults. prior: name or file of the generative
    model, if it uses one.
    """
    if eps is not None:
        settings = {**settings, "eps": eps}
    if name in WRAPPERS:
        wrapped: ClassifierWrapper = call_typed(partial(WRAPPERS[name], model), settings, f"setting of {name}")
        return wrapped
    if name not in NAMES:
        raise unknown("purifier", name, {*NAMES} - {*WRAPPERS})
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
    maker = FILTERS[name] if name in FILTERS else partial(BY_CLASSIFIER[name], model)
    made: Purifier = call_typed(maker, _with_seed(name, settings, seed), f"setting of {name}")
    return made


def by_prior(
    name: str,
    settings: Mapping[str, Any],
    *,
    prior: str | Path | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> tuple[nn.Module, Purifier]:
    """Return a generative model and the purifier called `name` that uses it, without a classifier."""
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


def parse_setting(text: str) -> tuple[str, Any]:
    """A setting of a purifier, e.g. "bits=1": its name and its value, a number, true, false or a name."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InputError(f"purifier option is {text!r}, expected NAME=VALUE, e.g. steps=10.")
    if value in ("true", "false"):
        return name, value == "true"
    try:
        number = parse_number(value)
    except InputError:
        return name, value
    return name, int(value) if value.lstrip("-").isdecimal() else number


def parse_radius(text: str) -> float | str:
    """A purification radius: a name like "min-aux", a number, or a fraction like 8/255."""
    if text in CHOICES:
        return text
    try:
        return parse_number(text)
    except InputError:
        names = ", ".join(CHOICES)
        raise InputError(f"eps_pfy is {text!r}, expected {names}, a number, or a fraction like 8/255.") from None
