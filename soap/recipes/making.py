"""From a recipe to trained weights in a folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from soap._files import atomic
from soap._runtime import distributed
from soap.data import Dataset
from soap.errors import InputError
from soap.recipes.building import build
from soap.recipes.recipe import Recipe
from soap.training import Progress, Trained, train


def make(
    recipe: Recipe,
    images: Dataset,
    *,
    out: Path,
    device: torch.device,
    precision: str = "fp32",
    compiled: bool = False,
    resume: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train the recipe's model on `images`; the folder gets what `training.train` writes, and recipe.toml.

    The recipe's text and the precision are kept inside the weights.
    """
    with compiling(compiled):
        done = train(
            build(recipe),
            images,
            recipe.training,
            out=out,
            attack=recipe.adversarial,
            device=device,
            precision=precision,
            compiled=compiled,
            resume=resume,
            metadata={"recipe": recipe.text, "precision": precision},
            watch=watch,
            stop=stop,
        )
    if distributed.here().first:
        atomic.write_text(out / "recipe.toml", recipe.text)
    return done


@contextmanager
def compiling(compiled: bool) -> Iterator[None]:
    """Say what to do where torch.compile does not work, for want of a compiler perhaps."""
    try:
        yield
    except Exception as error:
        if compiled and type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
            reason = str(error).splitlines()[0]
            raise InputError(f"torch.compile does not work here ({reason}); train without --compile.") from error
        raise
