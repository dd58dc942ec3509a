"""A recipe with a few values changed, in its text too: the text inside the weights must tell how they were made."""

import json
import re
from dataclasses import replace

from soap.errors import InputError
from soap.recipes.recipe import Recipe, parse


def revised(
    recipe: Recipe,
    *,
    data: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    decay: str | None = None,
    dropout: float | None = None,
) -> Recipe:
    """The recipe with another data set, length, seed, decay of its rate or dropout; None leaves a value as it is.

    Each changed line says what it was. The text is read again, so text and fields cannot differ.
    """
    schedule = replace(
        recipe.training,
        epochs=recipe.training.epochs if epochs is None else epochs,
        seed=recipe.training.seed if seed is None else seed,
        decay=recipe.training.decay if decay is None else decay,
    )
    model = recipe.model if dropout is None else {**recipe.model, "dropout": dropout}
    wanted = replace(recipe, data=recipe.data if data is None else data, model=model, training=schedule)
    text = recipe.text
    if wanted.data != recipe.data:
        text = rewritten(text, "", "data", json.dumps(wanted.data, ensure_ascii=False))
    if schedule.epochs != recipe.training.epochs:
        text = rewritten(text, "training", "epochs", str(schedule.epochs))
    if schedule.seed != recipe.training.seed:
        text = rewritten(text, "training", "seed", str(schedule.seed))
    if schedule.decay != recipe.training.decay:
        text = rewritten(text, "training", "decay", json.dumps(schedule.decay))
    if model != recipe.model:
        text = rewritten(text, "model", "dropout", str(dropout))
    try:
        written = parse(text, recipe.name)
    except InputError:
        written = recipe
    if written != replace(wanted, text=written.text):
        raise InputError(
            f"cannot write the changed values into the text of recipe {recipe.name}: want data = ... at its top, "
            "epochs, seed and decay under [training] and dropout under [model], each on a line of its own."
        )
    return written


def noted(recipe: Recipe, remark: str) -> Recipe:
    """The recipe with one more comment at its head."""
    return replace(recipe, text=f"# {remark}\n{recipe.text}")


def rewritten(text: str, section: str, key: str, value: str) -> str:
    """The TOML with `key = value` in `section` ("" is the part before the first one)."""
    lines = text.split("\n")
    headers = [place for place, line in enumerate(lines) if re.match(r"\s*\[", line)]
    start = 0
    if section:
        found = [place for place in headers if re.match(rf"\s*\[\s*{section}\s*\]", lines[place])]
        start = found[0] + 1 if found else len(lines)
    end = min((place for place in headers if place >= start), default=len(lines))
    for place in range(start, end):
        if old := re.match(rf"\s*{key}\s*=\s*(.*?)\s*(#.*)?$", lines[place]):
            lines[place] = f"{key} = {value}  # changed for this run; it was {old[1]}"
            break
    else:
        lines.insert(start, f"{key} = {value}  # added for this run")
    return "\n".join(lines)
