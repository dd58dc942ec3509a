"""Recipes of classifiers and generative models: frozen dataclasses, read from and written to TOML."""

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from soap._files import atomic
from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import Purification
from soap.data.sources import SOURCES
from soap.errors import FileError, InputError, unknown
from soap.recipes.typed_options import call_typed, python_values
from soap.training import GenerativeSchedule, Schedule
from soap.training.checkpoint import MAX_RECIPE_CHARS

ATTACKS: dict[str, type[FGSM] | type[PGD]] = {"fgsm": FGSM, "pgd": PGD}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A classifier: data set, network, auxiliary task, schedule, and purifier settings.

    model, auxiliary: options of the architecture and the task, checked when they are built. text: the TOML source,
    stored inside the weights.
    """

    name: str
    data: str
    architecture: str
    model: Mapping[str, Any]
    task: str | None
    auxiliary: Mapping[str, Any]
    training: Schedule
    adversarial: Attack | None
    purifier: Purification | None
    text: str


@dataclass(frozen=True, kw_only=True)
class GenerativeRecipe:
    """A generative model: data set, network, objective, schedule, and settings of the purifier that uses it.

    model, objective, purifier: their options, checked when they are built. text: as in `Recipe`.
    """

    name: str
    data: str
    kind: str
    model: Mapping[str, Any]
    objective: Mapping[str, Any]
    training: GenerativeSchedule
    purifier: Mapping[str, Any]
    text: str


AnyRecipe = TypeVar("AnyRecipe", bound=Recipe | GenerativeRecipe)


def parse(text: str, source: str) -> Recipe:
    """Read the TOML of a classifier's recipe; `source` names it in errors."""
    content = _load_toml(text, source)
    try:
        _check_keys(content, ("name", "data", "model", "auxiliary", "training", "adversarial", "purifier"))
        model, auxiliary = _table(content, "model"), _table(content, "auxiliary", optional=True)
        adversarial = _table(content, "adversarial", optional=True)
        return Recipe(
            name=_name(content),
            data=_string(content, "data", "recipe"),
            architecture=_string(model, "architecture", "[model]"),
            model={key: value for key, value in model.items() if key != "architecture"},
            task=_string(auxiliary, "task", "[auxiliary]") if auxiliary else None,
            auxiliary={key: value for key, value in auxiliary.items() if key != "task"},
            training=_fill(Schedule, _table(content, "training"), "[training]"),
            adversarial=_attack(adversarial) if adversarial else None,
            purifier=_fill(Purification, _table(content, "purifier"), "[purifier]") if "purifier" in content else None,
            text=text,
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def parse_generative(text: str, source: str) -> GenerativeRecipe:
    """Read the TOML of a generative model's recipe; `source` names it in errors."""
    content = _load_toml(text, source)
    try:
        _check_keys(content, ("name", "data", "model", "objective", "training", "purifier"))
        model = _table(content, "model")
        return GenerativeRecipe(
            name=_name(content),
            data=_string(content, "data", "recipe"),
            kind=_string(model, "kind", "[model]"),
            model=python_values(model, without="kind"),
            objective=python_values(_table(content, "objective", optional=True)),
            training=_fill(GenerativeSchedule, _table(content, "training"), "[training]"),
            purifier=python_values(_table(content, "purifier", optional=True)),
            text=text,
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def is_generative(text: str) -> bool:
    """Return whether this is the TOML of a generative model: its [model] has a kind instead of an architecture."""
    try:
        model = _load_toml(text, "recipe").get("model")
    except InputError:
        return False
    return isinstance(model, dict) and "kind" in model


def parse_any(text: str, source: str) -> Recipe | GenerativeRecipe:
    """Read the TOML of a classifier's or a generative model's recipe."""
    return parse_generative(text, source) if is_generative(text) else parse(text, source)


def read_text(path: Path) -> str:
    """Return the text of a recipe's file."""
    try:
        with atomic.file_errors(path):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 text ({error}); expected a recipe in TOML.") from error


@dataclass(frozen=True)
class RecipeFolder(Generic[AnyRecipe]):
    """Bundled recipes, one TOML file each: those of classifiers or those of generative models."""

    folder: Traversable
    kind: str
    parse: Callable[[str, str], AnyRecipe]

    def names(self) -> list[str]:
        """Return the names of the recipes."""
        return sorted(file.name.removesuffix(".toml") for file in self.folder.iterdir() if file.name.endswith(".toml"))

    def read(self, name: str | Path) -> AnyRecipe:
        """Read a bundled recipe by name, or any other by the path of its .toml file."""
        if str(name).endswith(".toml"):
            return self.parse(read_text(Path(name)), str(name))
        if str(name) not in self.names():
            raise unknown(self.kind, str(name), self.names())
        return self.parse((self.folder / f"{name}.toml").read_text(encoding="utf-8"), f"recipe {name}")


def revised(
    recipe: AnyRecipe,
    *,
    data: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    decay: str | None = None,
    dropout: float | None = None,
) -> AnyRecipe:
    """Return the recipe with changed values; None keeps a value.

    If a value changes, the text is written anew from the values, without comments except those at its head, which lists
    the changes. The fields are then read from that text, so the two cannot differ.
    """
    content = tomllib.loads(recipe.text)
    training = {"epochs": epochs, "seed": seed, "decay": decay}
    comments = []
    for section, old, key, new in (
        ("", recipe, "data", data),
        *(("training", recipe.training, key, value) for key, value in training.items()),
        ("model", recipe.model, "dropout", dropout),
    ):
        before = old.get(key) if isinstance(old, Mapping) else getattr(old, key, None)
        if new is not None and new != before:
            (content[section] if section else content)[key] = new
            shown = "not set" if before is None else _toml_value(before)
            comments.append(f"# Changed for this run: {key} = {_toml_value(new)}; the recipe has {shown}.")
    if not comments:
        return recipe
    head = itertools.takewhile(lambda line: line.startswith("#"), recipe.text.split("\n"))
    text = "\n".join([*head, *comments, "", _toml_text(content)])
    return parse_any(text, recipe.name)  # type: ignore[return-value]  # of the kind of `recipe`


def with_comment(recipe: AnyRecipe, comment: str) -> AnyRecipe:
    """Return the recipe with one more comment at the head of its text."""
    return replace(recipe, text=f"# {comment}\n{recipe.text}")


def _toml_text(content: Mapping[str, Any]) -> str:
    """Return TOML of top-level values and tables of values: the form of a recipe."""
    lines = [f"{key} = {_toml_value(value)}" for key, value in content.items() if not isinstance(value, dict)]
    for section, table in content.items():
        if isinstance(table, dict):
            lines += ["", f"[{section}]", *(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    raise InputError(f"cannot change a recipe that contains {value!r:.80}; expected numbers, strings and lists.")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _load_toml(text: str, source: str) -> dict[str, Any]:
    if len(text) > MAX_RECIPE_CHARS:
        raise InputError(f"{source}: the recipe has {len(text):,} characters; expected at most {MAX_RECIPE_CHARS:,}.")
    try:
        return tomllib.loads(text)
    # tomllib also raises Python's own errors: for numbers of thousands of digits and for deeply nested lists.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid TOML: {error}.") from error


def _fill(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """Return a dataclass with the values of a TOML table, checked against its annotations."""
    return call_typed(kind, python_values(table), f"key in {where}")


def _attack(table: Mapping[str, Any]) -> Attack:
    name = _string(table, "attack", "[adversarial]")
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    settings = {key: value for key, value in table.items() if key != "attack"}
    attack: Attack = _fill(ATTACKS[name], settings, "[adversarial]")
    return attack


def _check_keys(content: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in content:
        if key not in allowed:
            raise unknown("key in recipe", key, allowed)


def _table(content: Mapping[str, Any], key: str, *, optional: bool = False) -> dict[str, Any]:
    """Return the table `[key]`; empty if it is optional and missing."""
    if key not in content and not optional:
        raise InputError(f"the section [{key}] is missing.")
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"{key} is {table!r:.80}; expected a section [{key}].")
    return table


def _name(content: Mapping[str, Any]) -> str:
    """Return the model's name, which becomes part of file names and so must not contain a path."""
    name = _string(content, "name", "recipe")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"recipe has name = {name!r}; expected only letters, digits, '-', '_' and '.'.")
    return name


def _string(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} has {key} = {value!r:.80}; expected a name in quotes.")
    return value


def class_names(recipe: Recipe, classes: int) -> list[str]:
    """Return the class names of a recipe's published data set if it has `classes` of them, otherwise numbers from 0."""
    names = SOURCES[recipe.data].classes if recipe.data in SOURCES else ()
    return list(names) if len(names) == classes else [str(label) for label in range(classes)]
