"""The purifier of a recipe's model, as result rows store it."""

from functools import cache

from soap.purifiers.soap import soap_spec
from soap.recipes import generative
from soap.recipes.generative import GenerativeRecipe
from soap.recipes.recipe import Recipe
from soap.specs import BARE, UNDEFENDED, DefenceSpec, defence_spec


def defence(recipe: Recipe, eps_pfy: str, gradient: str | None = None) -> DefenceSpec:
    """The recipe's own purifier with that choice of radius; `BARE` for "none" or a recipe without a purifier.

    gradient: for label consistency, the gradient rule instead of the recipe's.
    """
    own = recipe.purifier
    if eps_pfy == UNDEFENDED or own is None:
        return BARE
    chosen = gradient or recipe.auxiliary.get("gradient", "paper")
    task = {"gradient": chosen} if recipe.task == "consistency" else {}
    return soap_spec(eps_pfy, tuple(sorted(set(own.grid))), own.step_size, own.steps, **task)


def defence_by(prior: GenerativeRecipe) -> DefenceSpec:
    """The purifier that uses a generative model, with the settings of its recipe."""
    return _by_text(prior.text)


@cache
def _by_text(text: str) -> DefenceSpec:
    """Cached: the network is built to make its purifier, which takes a fraction of a second."""
    recipe = generative.parse(text, "recipe")
    return defence_spec(generative.purifier(recipe, generative.build(recipe)))
