"""`soap models`: the bundled models, and any model's card."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Group
from rich.text import Text

from soap import recipes, zoo
from soap._files import atomic, tensor_files
from soap.cli.options import OneModel
from soap.cli.shell import Shell, command
from soap.cli.tables import figure, size, table
from soap.evaluation import PAPER, fingerprint
from soap.recipes import Recipe, generative
from soap.recipes.purifiers import way_of
from soap.report import UPPER_BOUND
from soap.report.row_text import attack_text, eps_text, settings_text
from soap.results import Row, Store
from soap.specs import attack_spec

HEADLINES = {"none": "clean", "fgsm": "FGSM", "pgd": "PGD"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """A model's identity and its measured figures.

    rows: those beside the weights' file, in NAME.jsonl, that were measured with these very weights; `foreign`
    counts the others.
    """

    name: str
    path: Path
    recipe: Recipe
    parameters: int
    weights_sha256: str
    metadata: dict[str, str]
    rows: list[Row]
    foreign: int

    def headline(self, attack: str) -> Row | None:
        """The figure of the paper's attack behind min-aux purification, or bare for a model without; most images."""
        wanted = PAPER.get(self.recipe.data, {}).get(attack)
        choice = "none" if self.recipe.task is None else "min-aux"
        if wanted is None:
            return None
        meant = (attack_spec(attack, wanted), recipes.defence(self.recipe, choice), self.recipe.data)
        fitting = [row for row in self.rows if (row.attack, row.defence, row.data) == meant]
        return max(fitting, key=lambda row: row.n, default=None)

    def as_json(self) -> dict[str, Any]:
        """The card for machines."""
        headlines = {name: row.as_json() if (row := self.headline(name)) else None for name in HEADLINES}
        return {
            "name": self.name,
            "file": self.path,
            "bytes": self.path.stat().st_size,
            "task": self.recipe.task,
            "architecture": self.recipe.architecture,
            "data": self.recipe.data,
            "parameters": self.parameters,
            "figures": headlines,
        }


def read(name: str) -> Card:
    """The card of a bundled model, or of the weights at a path."""
    model, path = zoo.load(name), zoo.weights_path(name)
    weights = fingerprint(model)
    rows = Store(path.with_suffix(".jsonl")).read()
    own = [row for row in rows if row.provenance.weights_sha256 == weights]
    metadata = {key: value for key, value in tensor_files.load_tensors(path)[1].items() if key != "recipe"}
    return Card(
        name=model.name,
        path=path,
        recipe=zoo.recipe(name),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weights_sha256=weights,
        metadata=metadata,
        rows=own,
        foreign=len(rows) - len(own),
    )


def models(shell: Shell, model: OneModel = None) -> None:
    """List the bundled models with their measured figures, or show one model's card.

    Figures are accuracies in per cent with their 95 % intervals, by the protocol `transfer`: the attacker did not
    know the purifier, so they are upper bounds.
    """
    if model is not None:
        if zoo.is_prior(model):
            _show_prior(shell, prior_card(model))
        else:
            _show_card(shell, model, read(model))
        return
    cards = [read(name) for name in zoo.names()]
    columns = tuple(f"{title}, %" for title in HEADLINES.values())
    # Two lines a model: on one, the table is wider than most terminals.
    view = table("model", "task\nnetwork", "parameters\nsize", *columns, "n", right=("n",), whole=("model", *columns))
    for card in cards:
        rows = [card.headline(attack) for attack in HEADLINES]
        counts = sorted({row.n for row in rows if row})
        view.add_row(
            card.name,
            f"{card.recipe.task or 'none'}\n{card.recipe.architecture}",
            f"{card.parameters:,}\n{size(card.path.stat().st_size)}",
            *(figure(row).replace(" ", "\n", 1) for row in rows),
            ", ".join(f"{n:,}" for n in counts) or "-",
        )
    priors = [prior_card(name) for name in zoo.prior_names()]
    purifiers = table("generative model", "kind", "parameters", "size", "purify by", right=("parameters", "size"))
    for prior in priors:
        numbers = (f"{prior['parameters']:,}", size(prior["bytes"]))
        purifiers.add_row(prior["name"], prior["kind"], *numbers, f"--with {prior['purifier']}")
    bundled = {*zoo.names(), *zoo.prior_names()}
    others = [name for name in (*recipes.names(), *generative.names()) if name not in bundled]
    content = {
        "models": [card.as_json() for card in cards],
        "recipes": recipes.names(),
        "priors": priors,
        "prior_recipes": generative.names(),
    }
    shell.result(content, Group(view, purifiers) if priors else view)
    shell.say(f"Figures: accuracy purified by min-aux, with 95 % intervals. {UPPER_BOUND}")
    named = f": {', '.join(others)}." if shell.verbose else "; `soap models -v` names them."
    shell.say(f"{len(others)} more can be trained with `soap train RECIPE`{named}")


def prior_card(name: str) -> dict[str, Any]:
    """What a generative model is: its kind and size, and the purifier that uses it."""
    recipe, path = zoo.prior_recipe(name), zoo.weights_path(name)
    return {
        "name": recipe.name,
        "file": path,
        "bytes": path.stat().st_size,
        "kind": recipe.kind,
        "data": recipe.data,
        "parameters": sum(parameter.numel() for parameter in zoo.load_prior(name).parameters()),
        "purifier": way_of(recipe),
        "file_sha256": atomic.sha256(path),
        "recipe": recipe.text,
    }


def _show_prior(shell: Shell, card: dict[str, Any]) -> None:
    facts = {**card, "purifier": f"--with {card['purifier']}"}
    text = str(facts.pop("recipe")).rstrip()
    width = max(map(len, facts))
    shell.result(card, "\n".join([*(f"{key:<{width}}  {value}" for key, value in facts.items()), "", text]))


KNOWN = {"data": "sha256 of its training data", "epoch": "epochs trained", "weights": "which weights"}


def _show_card(shell: Shell, asked: str, card: Card) -> None:
    facts = {
        "model": card.name,
        "file": str(card.path),
        "size": size(card.path.stat().st_size),
        "sha256 of the file": atomic.sha256(card.path),
        "sha256 of the weights": card.weights_sha256,
        "task": card.recipe.task or "none",
        "network": card.recipe.architecture,
        "parameters": f"{card.parameters:,}",
        **{KNOWN.get(key, key): value for key, value in card.metadata.items()},
    }
    view = table("attack", "purified", "accuracy, %", "n", "data", "settings", right=("n",))
    for row in card.rows:
        shown = (attack_text(row.attack), eps_text(row.defence), figure(row), f"{row.n:,}", row.data)
        view.add_row(*shown, settings_text(row.attack))
    content = {
        **card.as_json(),
        "file_sha256": atomic.sha256(card.path),
        "weights_sha256": card.weights_sha256,
        "metadata": card.metadata,
        "recipe": card.recipe.text,
        "rows": [row.as_json() for row in card.rows],
    }
    width = max(map(len, facts))
    lines = "\n".join(f"{key:<{width}}  {value}" for key, value in facts.items())
    measured = view if card.rows else Text(f"\nNo figures yet; measure them with `soap evaluate {asked}`.\n")
    shell.result(content, Group(Text(lines), measured, Text(card.recipe.text.rstrip())))
    if card.foreign:
        beside = card.path.with_suffix(".jsonl")
        shell.say(f"{card.foreign} rows of {beside} were measured with other weights and are left out.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "models", example="soap models mnist-cnn-dr")(models)
