"""A recipe of a generative model: everything that makes it, and how a purifier uses it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from soap.errors import InputError
from soap.recipes.reading import allow_only, content_of, fill, name_of, plain, section_of, text_of
from soap.recipes.revision import rewritten
from soap.training import GenerativeSchedule


@dataclass(frozen=True, kw_only=True)
class GenerativeRecipe:
    """Everything that makes a generative model: data set, network, objective, schedule, and purifier settings.

    model, objective and purifier: their own options, checked when they are built. text: the TOML this came from, kept
    inside the weights.
    """

    name: str
    data: str
    kind: str
    model: Mapping[str, Any]
    objective: Mapping[str, Any]
    training: GenerativeSchedule
    purifier: Mapping[str, Any]
    text: str


def is_generative(text: str) -> bool:
    """Whether this is the TOML of a generative model's recipe: its [model] has a kind instead of an architecture."""
    try:
        model = content_of(text, "recipe").get("model")
    except InputError:
        return False
    return isinstance(model, dict) and "kind" in model


def parse(text: str, source: str) -> GenerativeRecipe:
    """Read a recipe's TOML; `source` names it in errors."""
    content = content_of(text, source)
    try:
        allow_only(content, ("name", "data", "model", "objective", "training", "purifier"), "recipe")
        model = section_of(content, "model")
        return GenerativeRecipe(
            name=name_of(content),
            data=text_of(content, "data", "recipe"),
            kind=text_of(model, "kind", "[model]"),
            model=_options({key: value for key, value in model.items() if key != "kind"}),
            objective=_options(section_of(content, "objective", optional=True)),
            training=fill(GenerativeSchedule, section_of(content, "training"), "[training]"),
            purifier=_options(section_of(content, "purifier", optional=True)),
            text=text,
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _options(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in section.items()}


def revised(
    recipe: GenerativeRecipe, *, data: str | None = None, epochs: int | None = None, seed: int | None = None
) -> GenerativeRecipe:
    """The recipe with another data set, length or seed, in its text too; None leaves a value as it is."""
    schedule = recipe.training
    text = recipe.text
    for section, key, old, new in (
        ("", "data", recipe.data, data),
        ("training", "epochs", schedule.epochs, epochs),
        ("training", "seed", schedule.seed, seed),
    ):
        if new is not None and new != old:
            text = rewritten(text, section, key, json.dumps(new, ensure_ascii=False))
    written = parse(text, recipe.name)
    for asked, got in ((data, written.data), (epochs, written.training.epochs), (seed, written.training.seed)):
        if asked is not None and asked != got:
            raise InputError(
                f"cannot write {asked!r} into the text of recipe {recipe.name}: want data = ... at its top, and "
                "epochs = ... and seed = ... under [training], each on a line of its own."
            )
    return written


def noted(recipe: GenerativeRecipe, remark: str) -> GenerativeRecipe:
    """The recipe with one more comment at its head."""
    return replace(recipe, text=f"# {remark}\n{recipe.text}")
