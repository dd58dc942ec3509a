"""`soap models`: list the bundled models, or show one model's card."""

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap import hub, recipes, zoo
from soap._files import atomic
from soap.cli.console import Console, accuracy, command, size, table
from soap.cli.options import ModuleName, completion
from soap.recipes import generative
from soap.report import UPPER_BOUND
from soap.report.model_cards import HEADLINE_ATTACKS, ModelCard, read_model_card, read_prior_card
from soap.report.row_text import attack_text, eps_text, gradient_text, settings_text

METADATA_TITLES = {"data": "sha256 of its training data", "epoch": "epochs trained", "weights": "which weights"}


@command("models", example="soap models mnist-cnn-dr")
def models_command(
    console: Console,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Show the card of this one: a bundled model, the path of a .safetensors file, or hf://owner/name.",
            autocompletion=completion(zoo.names, ".safetensors"),
        ),
    ] = None,
    module: ModuleName = None,
) -> None:
    """List the bundled models with their results, or show one model's card.

    Results are accuracies in per cent with 95 % intervals, by the protocol `transfer`: the attacks do not know the
    purifier, so they are upper bounds.
    """
    if model is None:
        _print_list(console)
    elif zoo.is_prior(model := hub.pinned(model)):
        card = read_prior_card(model)
        facts = {key: str(value) for key, value in card.items() if key != "recipe"}
        facts["purifier"] = f"--with {card['purifier']}"
        console.result(card, f"{_aligned(facts)}\n\n{card['recipe'].rstrip()}")
    else:
        _print_card(console, model, read_model_card(model, module))


def _print_list(console: Console) -> None:
    cards = [read_model_card(name) for name in zoo.names()]
    priors = [read_prior_card(name) for name in zoo.prior_names()]
    bundled = {*zoo.names(), *zoo.prior_names()}
    others = [name for name in (*recipes.names(), *generative.names()) if name not in bundled]
    content = {
        "models": [card.as_json() for card in cards],
        "recipes": recipes.names(),
        "priors": priors,
        "prior_recipes": generative.names(),
    }
    console.result(content, Group(*_tables(cards, priors)))
    console.info(f"Results: accuracy with min-aux purification and 95 % intervals. {UPPER_BOUND}")
    names = f": {', '.join(others)}." if console.verbose else "; `soap models -v` lists them."
    console.info(f"{len(others)} more can be trained with `soap train RECIPE`{names}")


def _tables(cards: Sequence[ModelCard], priors: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    columns = tuple(f"{title}, %" for title in HEADLINE_ATTACKS.values())
    # Two lines for each model: on one line the table is wider than most terminals.
    models = table("model", "task\nnetwork", "parameters\nsize", *columns, "n", right=("n",), whole=("model", *columns))
    for card in cards:
        rows = [card.headline(attack) for attack in HEADLINE_ATTACKS]
        counts = sorted({row.n for row in rows if row})
        models.add_row(
            card.name,
            f"{card.trained.task or 'none'}\n{card.architecture}",
            f"{card.parameters:,}\n{size(card.bytes)}",
            *(accuracy(row).replace(" ", "\n", 1) for row in rows),
            ", ".join(f"{n:,}" for n in counts) or "-",
        )
    purifiers = table("generative model", "kind", "parameters", "size", "purify with", right=("parameters", "size"))
    for prior in priors:
        numbers = (f"{prior['parameters']:,}", size(prior["bytes"]))
        purifiers.add_row(prior["name"], prior["kind"], *numbers, f"--with {prior['purifier']}")
    return [models, purifiers] if priors else [models]


def _print_card(console: Console, given: str, card: ModelCard) -> None:
    facts = {
        "model": card.name,
        "file": str(card.path),
        "size": size(card.bytes),
        "sha256 of the file": atomic.sha256(card.path),
        "sha256 of the weights": card.weights_sha256,
        "task": card.trained.task or "none",
        "network": card.architecture,
        "classes": shorten(", ".join(card.trained.classes), 200),
        "parameters": f"{card.parameters:,}",
        **{METADATA_TITLES.get(key, key): value for key, value in card.metadata.items()},
    }
    results: RenderableType = Text(f"\nNo results yet; measure them with `soap evaluate {given}`.\n")
    if card.rows:
        results = table("attack", "purified", "accuracy, %", "n", "data", "settings", right=("n",))
        for row in card.distinct_rows():
            purified = eps_text(row.defence) + gradient_text(row.defence)
            shown = (attack_text(row.attack), purified, accuracy(row), f"{row.n:,}", row.data)
            results.add_row(*shown, settings_text(row.attack))
    recipe = Text(card.trained.recipe.text.rstrip() if card.trained.recipe else "")
    console.result(card.details(), Group(Text(_aligned(facts)), results, recipe))
    if card.foreign_rows:
        rows_file = card.path.with_suffix(".jsonl")
        console.info(f"{card.foreign_rows} rows of {rows_file} were measured with other weights and are not shown.")


def _aligned(facts: Mapping[str, str]) -> str:
    width = max(map(len, facts))
    return "\n".join(f"{key:<{width}}  {value}" for key, value in facts.items())
