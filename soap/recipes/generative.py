"""Generative models by recipe: one TOML file each, in the folder `generative`."""

import inspect
from collections.abc import Callable
from functools import cache, partial
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
from soap.recipes.building import build_errors, compile_errors
from soap.recipes.recipe import GenerativeRecipe, is_generative, read_text, revised, with_comment
from soap.recipes.recipe import parse_generative as parse
from soap.recipes.typed_options import call_typed
from soap.shapes import Tensor
from soap.specs import DefenceSpec, defence_spec
from soap.training import GenerativeProgress, Objective, Trained, WganGp, train_generative

Purify = Callable[[Tensor], Purified]


class Kind(NamedTuple):
    """One kind of generative model: its network, its training objective, and the purifier that uses it."""

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
    """Return the names of the bundled recipes of generative models."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def read(name: str | Path) -> GenerativeRecipe:
    """Read a bundled recipe by name, or any other by the path of its .toml file."""
    if str(name).endswith(".toml"):
        return parse(read_text(Path(name)), str(name))
    if str(name) not in names():
        raise unknown("recipe of a generative model", str(name), names())
    return parse((_folder() / f"{name}.toml").read_text(encoding="utf-8"), f"recipe {name}")


def build(recipe: GenerativeRecipe) -> nn.Module:
    """Return the recipe's network with initial weights, which depend only on its seed.

    The network has the recipe's `name` and, as `purification`, the purifier's settings, which are checked here.
    """
    model = network(recipe)
    for key, value in {"name": recipe.name, "purification": recipe.purifier}.items():
        setattr(model, key, value)
    purifier(recipe, model)
    return model


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
    """Train the recipe's model on `images`; write the files of `train_generative` and recipe.toml to `out`.

    The recipe's text and the precision are stored inside the weights.
    """
    model = build(recipe).to(device)
    maker = partial(_kind(recipe).objective, model, recipe.training)
    objective: Objective = call_typed(maker, recipe.objective, "key in [objective]")
    with compile_errors(compiled):
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
    "parse",
    "purifier",
    "purifier_spec",
    "read",
    "revised",
    "with_comment",
]
