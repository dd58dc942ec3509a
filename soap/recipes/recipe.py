"""Recipes of classifiers and generative models: frozen dataclasses, read from and written to TOML."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from soap._files import atomic
from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import Purification
from soap.data.sources import SOURCES
from soap.errors import FileError, InputError, unknown
from soap.recipes.typed_options import call_typed, parse_number
from soap.training import AdversarialTraining, CertifiedTraining, GenerativeSchedule, Schedule
from soap.training.checkpoint import MAX_RECIPE_CHARS, recipe_values

CHANGES_HEAD = "\n# Options of this run, instead of the values above.\n[changed]\n"

ATTACKS: dict[str, type[FGSM] | type[PGD]] = {"fgsm": FGSM, "pgd": PGD}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A classifier: data set, network, auxiliary task, schedule, and purifier settings.

    model, auxiliary: options of the architecture and the task, checked when they are built. text: the TOML source,
    stored inside the weights. start: the bundled model whose weights training starts from. adversarial: the attack of
    [adversarial]; as `AdversarialTraining` if the section has `through` or `trades_beta`.
    """

    name: str
    data: str
    architecture: str
    model: Mapping[str, Any]
    task: str | None
    auxiliary: Mapping[str, Any]
    training: Schedule
    adversarial: Attack | AdversarialTraining | None
    certified: CertifiedTraining | None = None
    purifier: Purification | None
    text: str
    start: str | None = None


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
    with _named(source):
        content = _load_toml(text)
        _check_keys(
            content, ("name", "data", "start", "model", "auxiliary", "training", "adversarial", "certified", "purifier")
        )
        model, auxiliary = _table(content, "model"), _table(content, "auxiliary", optional=True)
        adversarial = _table(content, "adversarial", optional=True)
        return Recipe(
            name=_name(content),
            data=_string(content, "data", "recipe"),
            architecture=_string(model, "architecture", "[model]"),
            model=_options(model, without="architecture"),
            task=_string(auxiliary, "task", "[auxiliary]") if auxiliary else None,
            auxiliary=_options(auxiliary, without="task"),
            training=_filled(Schedule, content, "training"),
            adversarial=_attack(adversarial) if adversarial else None,
            certified=_filled(CertifiedTraining, content, "certified") if "certified" in content else None,
            purifier=_filled(Purification, content, "purifier") if "purifier" in content else None,
            text=text,
            start=_string(content, "start", "recipe") if "start" in content else None,
        )


def parse_generative(text: str, source: str) -> GenerativeRecipe:
    """Read the TOML of a generative model's recipe; `source` names it in errors."""
    with _named(source):
        content = _load_toml(text)
        _check_keys(content, ("name", "data", "model", "objective", "training", "purifier"))
        model = _table(content, "model")
        return GenerativeRecipe(
            name=_name(content),
            data=_string(content, "data", "recipe"),
            kind=_string(model, "kind", "[model]"),
            model=_options(model, without="kind"),
            objective=_options(_table(content, "objective", optional=True)),
            training=_filled(GenerativeSchedule, content, "training"),
            purifier=_options(_table(content, "purifier", optional=True)),
            text=text,
        )


def parse_any(text: str, source: str) -> Recipe | GenerativeRecipe:
    """Read the TOML of a classifier's recipe or of a generative model's, whose [model] has a kind."""
    with _named(source):
        model = _load_toml(text).get("model")
    generative = isinstance(model, dict) and "kind" in model
    return parse_generative(text, source) if generative else parse(text, source)


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
    classes: int | None = None,
) -> AnyRecipe:
    """Return the recipe with changed values; None keeps a value.

    The text keeps its own values and gets the new ones in a table [changed] at its end. The fields are then read from
    that text, so the two cannot differ.
    """
    given = {"data": data, "epochs": epochs, "seed": seed, "decay": decay, "dropout": dropout, "classes": classes}
    present = {"data": recipe.data, **recipe.model, **vars(recipe.training)}
    changes = {key: new for key, new in given.items() if new is not None and new != present.get(key)}
    if not changes:
        return recipe
    original = recipe.text.partition(CHANGES_HEAD)[0]
    changes = tomllib.loads(recipe.text).get("changed", {}) | changes
    # JSON writes numbers and strings as TOML does, except for the control character DEL.
    lines = (
        f"{key} = {json.dumps(new, ensure_ascii=False)}\n".replace("\x7f", "\\u007f") for key, new in changes.items()
    )
    text = f"{original.rstrip()}\n{CHANGES_HEAD}{''.join(lines)}"
    return parse_any(text, recipe.name)  # type: ignore[return-value]  # of the kind of `recipe`


def with_comment(recipe: AnyRecipe, comment: str) -> AnyRecipe:
    """Return the recipe with one more comment at the head of its text."""
    return replace(recipe, text=f"# {comment}\n{recipe.text}")


@contextmanager
def _named(source: str) -> Iterator[None]:
    """Name the recipe in errors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _load_toml(text: str) -> dict[str, Any]:
    if len(text) > MAX_RECIPE_CHARS:
        raise InputError(f"the recipe has {len(text):,} characters; expected at most {MAX_RECIPE_CHARS:,}.")
    try:
        return recipe_values(text)
    except InputError:
        raise
    # tomllib also raises Python's own errors: for numbers of thousands of digits and for deeply nested lists.
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid TOML: {error}.") from error


def _options(table: Mapping[str, Any], *, without: str = "") -> dict[str, Any]:
    """Return a TOML table as Python options: fractions like "8/255" as numbers, lists as tuples."""
    return {key: _option(value) for key, value in table.items() if key != without}


def _option(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_option, value))
    return parse_number(value) if isinstance(value, str) and "/" in value else value


def _filled(kind: Any, content: Mapping[str, Any], key: str) -> Any:
    """Return a dataclass with the values of the table `[key]`, checked against its annotations."""
    return call_typed(kind, _options(_table(content, key)), f"key in [{key}]")


def _attack(table: Mapping[str, Any]) -> Attack | AdversarialTraining:
    """Return the attack of [adversarial]; with a setting of `AdversarialTraining`, that around the attack."""
    name = _string(table, "attack", "[adversarial]")
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    options = _options(table, without="attack")
    around: dict[str, Any] = {key: options.pop(key) for key in ("through", "trades_beta") if key in options}
    attack: FGSM | PGD = call_typed(ATTACKS[name], options, "key in [adversarial]")
    if not around:
        return attack
    around["attack"] = attack
    training: AdversarialTraining = call_typed(AdversarialTraining, around, "key in [adversarial]")
    return training


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


def class_names(recipe: Recipe, classes: int) -> tuple[str, ...]:
    """Return the class names of a recipe's published data set if it has `classes` of them, otherwise numbers from 0."""
    names = SOURCES[recipe.data].classes if recipe.data in SOURCES else ()
    return tuple(names) if len(names) == classes else tuple(map(str, range(classes)))
