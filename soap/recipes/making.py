"""Train the model of a recipe into a folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from soap._files import atomic
from soap._runtime import distributed
from soap.data import Dataset
from soap.errors import InputError
from soap.recipes import generative
from soap.recipes.building import build
from soap.recipes.recipe import GenerativeRecipe, Recipe
from soap.training import Trained, train, train_generative


def make(
    recipe: Recipe | GenerativeRecipe,
    images: Dataset,
    *,
    out: Path,
    device: torch.device,
    precision: str = "fp32",
    compiled: bool = False,
    resume: bool = False,
    watch: Callable[[Any], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train the recipe's model on `images`; write the files of `soap.training` and recipe.toml to `out`.

    The recipe's text and the precision are stored inside the weights.
    """
    options: dict[str, Any] = {
        "out": out,
        "device": device,
        "precision": precision,
        "compiled": compiled,
        "resume": resume,
        "metadata": {"recipe": recipe.text, "precision": precision},
        "watch": watch,
        "stop": stop,
    }
    with compile_errors(compiled):
        if isinstance(recipe, GenerativeRecipe):
            done = train_generative(generative.objective(recipe, device), images, recipe.training, **options)
        else:
            done = train(build(recipe), images, recipe.training, attack=recipe.adversarial, **options)
    if distributed.processes().is_main:
        atomic.write_text(out / "recipe.toml", recipe.text)
    return done


@contextmanager
def compile_errors(compiled: bool) -> Iterator[None]:
    """Turn errors of torch.compile, e.g. for a missing compiler, into an `InputError` with advice."""
    try:
        yield
    except Exception as error:
        if compiled and type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
            reason = str(error).splitlines()[0]
            raise InputError(f"torch.compile does not work here ({reason}); train without --compile.") from error
        raise
