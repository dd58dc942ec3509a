"""Recipes: one TOML file a model of the paper, by name or by path; `generative` has those without labels."""

from importlib import resources
from pathlib import Path

from soap.errors import unknown
from soap.recipes import generative
from soap.recipes.building import build
from soap.recipes.generative import GenerativeRecipe
from soap.recipes.making import make
from soap.recipes.naming import defence
from soap.recipes.reading import text_in
from soap.recipes.recipe import Recipe, parse
from soap.recipes.revision import noted, revised


def names() -> list[str]:
    """The bundled recipes."""
    folder = resources.files(__package__)
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read(name: str | Path) -> Recipe:
    """A bundled recipe by name, or any other by the path of its .toml file."""
    if str(name).endswith(".toml"):
        return parse(text_in(Path(name)), str(name))
    if str(name) not in names():
        raise unknown("recipe", str(name), names())
    file = resources.files(__package__) / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"), f"recipe {name}")


def find(name: str | Path) -> Recipe | GenerativeRecipe:
    """A recipe of either sort, by name or by the path of its .toml file."""
    if str(name) in generative.names():
        return generative.read(name)
    if not str(name).endswith(".toml"):
        if str(name) not in names():
            raise unknown("recipe", str(name), (*names(), *generative.names()))
        return read(name)
    text = text_in(Path(name))
    return generative.parse(text, str(name)) if generative.is_generative(text) else parse(text, str(name))


__all__ = ["Recipe", "build", "defence", "find", "generative", "make", "names", "noted", "parse", "read", "revised"]
