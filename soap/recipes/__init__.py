"""Recipes: one TOML file per model of the paper, by name or path; `generative` has those of generative models."""

from importlib import resources
from pathlib import Path

from soap.errors import unknown
from soap.purifiers.soap import soap_spec
from soap.recipes import generative
from soap.recipes.building import build, make
from soap.recipes.recipe import (
    GenerativeRecipe,
    Recipe,
    RecipeFolder,
    parse,
    parse_any,
    read_text,
    revised,
    with_comment,
)
from soap.specs import BARE, UNDEFENDED, DefenceSpec

_folder = RecipeFolder(resources.files("soap.recipes"), "recipe", parse)
names, read = _folder.names, _folder.read


def find(name: str | Path) -> Recipe | GenerativeRecipe:
    """Read a recipe of a classifier or a generative model, by name or by the path of its .toml file."""
    if str(name) in generative.names():
        return generative.read(name)
    if not str(name).endswith(".toml"):
        if str(name) not in names():
            raise unknown("recipe", str(name), (*names(), *generative.names()))
        return read(name)
    return parse_any(read_text(Path(name)), str(name))


def purifier_spec(recipe: Recipe, eps_pfy: str, gradient: str | None = None) -> DefenceSpec:
    """Return the recipe's SOAP purifier with that choice of radius, as result rows store it; `BARE` without a purifier.

    gradient: for label consistency, the gradient rule instead of the recipe's.
    """
    own = recipe.purifier
    if eps_pfy == UNDEFENDED or own is None:
        return BARE
    chosen = gradient or recipe.auxiliary.get("gradient", "paper")
    task = {"gradient": chosen} if recipe.task == "consistency" else {}
    return soap_spec(eps_pfy, tuple(sorted(set(own.grid))), own.step_size, own.steps, **task)


__all__ = [
    "GenerativeRecipe",
    "Recipe",
    "build",
    "find",
    "generative",
    "make",
    "names",
    "parse",
    "parse_any",
    "purifier_spec",
    "read",
    "revised",
    "with_comment",
]
