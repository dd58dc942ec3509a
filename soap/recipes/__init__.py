"""Recipes: one TOML file per model of the paper, by name or path; `generative` has those of generative models."""

from importlib import resources
from pathlib import Path

from soap.errors import unknown
from soap.purifiers.soap import label
from soap.recipes import generative
from soap.recipes.building import build, make
from soap.recipes.recipe import GenerativeRecipe, Recipe, is_generative, parse, read_text, revised, with_comment

NO_PURIFIER = "none"
"""The name that result rows have for a classifier without a purifier."""


def names() -> list[str]:
    """Return the names of the bundled recipes of classifiers."""
    folder = resources.files(__package__)
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read(name: str | Path) -> Recipe:
    """Read a bundled recipe by name, or any other by the path of its .toml file."""
    if str(name).endswith(".toml"):
        return parse(read_text(Path(name)), str(name))
    if str(name) not in names():
        raise unknown("recipe", str(name), names())
    file = resources.files(__package__) / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"), f"recipe {name}")


def find(name: str | Path) -> Recipe | GenerativeRecipe:
    """Read a recipe of a classifier or a generative model, by name or by the path of its .toml file."""
    if str(name) in generative.names():
        return generative.read(name)
    if not str(name).endswith(".toml"):
        if str(name) not in names():
            raise unknown("recipe", str(name), (*names(), *generative.names()))
        return read(name)
    text = read_text(Path(name))
    return generative.parse(text, str(name)) if is_generative(text) else parse(text, str(name))


def purifier_label(recipe: Recipe, eps_pfy: str, gradient: str | None = None) -> str:
    """Return the name that result rows have for the recipe's SOAP purifier with that choice of radius.

    gradient: for label consistency, the gradient to purify by instead of the recipe's.
    """
    own = recipe.purifier
    if eps_pfy == NO_PURIFIER or own is None:
        return NO_PURIFIER
    chosen = gradient or recipe.auxiliary.get("gradient", "paper")
    further = [f"gradient={chosen!r}"] if recipe.task == "consistency" else []
    return label(eps_pfy, tuple(sorted(set(own.grid))), own.step_size, own.steps, *further)


__all__ = [
    "NO_PURIFIER",
    "GenerativeRecipe",
    "Recipe",
    "build",
    "find",
    "generative",
    "make",
    "names",
    "parse",
    "purifier_label",
    "read",
    "revised",
    "with_comment",
]
