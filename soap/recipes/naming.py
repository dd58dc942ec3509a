"""What result rows call the purifier of a recipe's model."""

from functools import cache

from soap.data.sources import SOURCES
from soap.purifiers.soap import label
from soap.recipes import generative
from soap.recipes.generative import GenerativeRecipe
from soap.recipes.recipe import Recipe

BARE = "none"


def defence(recipe: Recipe, eps_pfy: str, gradient: str | None = None) -> str:
    """The name of its own purifier with that choice of radius; "none" for the bare classifier.

    gradient: for label consistency, the gradient to purify by instead of the recipe's.
    """
    own = recipe.purifier
    if eps_pfy == BARE or own is None:
        return BARE
    chosen = gradient or recipe.auxiliary.get("gradient", "paper")
    further = [f"gradient={chosen!r}"] if recipe.task == "consistency" else []
    return label(eps_pfy, tuple(sorted(set(own.grid))), own.step_size, own.steps, *further)


def defence_by(prior: GenerativeRecipe) -> str:
    """The name of the purifier that uses a generative model, with the settings of its recipe."""
    return _by_text(prior.text)


@cache
def _by_text(text: str) -> str:
    """The network is built, for a purifier names itself; that takes a fraction of a second, so once is enough."""
    recipe = generative.parse(text, "recipe")
    return repr(generative.purifier(recipe, generative.build(recipe)))


def class_names(recipe: Recipe, classes: int) -> list[str]:
    """The class names of a recipe's published data set if it has `classes` of them, else the numbers from 0."""
    names = SOURCES[recipe.data].classes if recipe.data in SOURCES else ()
    return list(names) if len(names) == classes else [str(label) for label in range(classes)]
