"""Generative models by recipe: one TOML file each, in the folder of this module's name."""

import inspect
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from soap._files import atomic
from soap._runtime.isolation import preserved_random_state
from soap.data import Dataset
from soap.errors import unknown
from soap.models import Generator
from soap.purifiers import DefenseGAN, Purified
from soap.recipes.bounds import building
from soap.recipes.calling import call_typed
from soap.recipes.generative_recipe import GenerativeRecipe, is_generative, noted, parse, revised
from soap.recipes.making import compiling
from soap.recipes.reading import text_in
from soap.shapes import Tensor
from soap.training import GenerativeProgress, Objective, Trained, WganGp, train_generative

Purify = Callable[[Tensor], Purified]


class Kind(NamedTuple):
    """One kind of generative model: the network, what it is trained by, and the purifier that uses it."""

    model: Callable[..., nn.Module]
    objective: Callable[..., Objective]
    purifier: Callable[..., Purify]


def _wgan() -> Kind:
    return Kind(Generator, WganGp, DefenseGAN)


def _pixelcnn() -> Kind:
    from soap.models.pixelcnn import PixelCNN
    from soap.purifiers.pixel_defend import PixelDefend
    from soap.training.likelihood import Likelihood

    return Kind(PixelCNN, Likelihood, PixelDefend)


KINDS: dict[str, Callable[[], Kind]] = {"wgan": _wgan, "pixelcnn": _pixelcnn}


def names() -> list[str]:
    """The bundled recipes of generative models."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def read(name: str | Path) -> GenerativeRecipe:
    """A bundled recipe by name, or any other by the path of its .toml file."""
    if str(name).endswith(".toml"):
        return parse(text_in(Path(name)), str(name))
    if str(name) not in names():
        raise unknown("recipe of a generative model", str(name), names())
    return parse((_folder() / f"{name}.toml").read_text(encoding="utf-8"), f"recipe {name}")


def build(recipe: GenerativeRecipe) -> nn.Module:
    """The recipe's network with freshly drawn weights, which depend on its seed alone.

    It carries the recipe's `name` and, as `purification`, the purifier's settings, which are checked here.
    """
    model = network(recipe)
    for key, value in {"name": recipe.name, "purification": recipe.purifier}.items():
        setattr(model, key, value)
    purifier(recipe, model)
    return model


def network(recipe: GenerativeRecipe) -> nn.Module:
    """The bare network of `build`."""
    with preserved_random_state(), building(f"the {recipe.kind} of {recipe.name}"):
        torch.manual_seed(recipe.training.seed)
        model: nn.Module = call_typed(_kind(recipe).model, recipe.model, f"option of a {recipe.kind}")
        # The layout of the weights, not their values: convolutions are faster so.
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def purifier(recipe: GenerativeRecipe, model: nn.Module, **instead: Any) -> Purify:
    """The purifier that uses the recipe's model, with its settings; `instead` are settings other than the recipe's."""
    make = partial(_kind(recipe).purifier, model)
    takes = inspect.signature(make).parameters
    for name in instead:
        if name not in takes:
            raise unknown("purifier setting", name, takes)
    made: Purify = call_typed(make, {**recipe.purifier, **instead}, "key in [purifier]")
    return made


def make(
    recipe: GenerativeRecipe,
    images: Dataset,
    *,
    out: Path,
    device: torch.device,
    precision: str = "fp32",
    compiled: bool = False,
    resume: bool = False,
    watch: Callable[[GenerativeProgress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train the recipe's model on `images`; the folder gets what `train_generative` writes, and recipe.toml.

    The recipe's text and the precision are kept inside the weights.
    """
    model = build(recipe).to(device)
    maker = partial(_kind(recipe).objective, model, recipe.training)
    objective: Objective = call_typed(maker, recipe.objective, "key in [objective]")
    with compiling(compiled):
        done = train_generative(
            objective,
            images,
            recipe.training,
            out=out,
            device=device,
            precision=precision,
            compiled=compiled,
            resume=resume,
            metadata={"recipe": recipe.text, "precision": precision},
            watch=watch,
            stop=stop,
        )
    atomic.write_text(out / "recipe.toml", recipe.text)
    return done


def _kind(recipe: GenerativeRecipe) -> Kind:
    if recipe.kind not in KINDS:
        raise unknown("kind of generative model", recipe.kind, KINDS)
    return KINDS[recipe.kind]()


def _folder() -> Any:
    return resources.files("soap.recipes") / "generative"


__all__ = [
    "KINDS",
    "GenerativeRecipe",
    "build",
    "is_generative",
    "make",
    "names",
    "network",
    "noted",
    "parse",
    "purifier",
    "read",
    "revised",
]
