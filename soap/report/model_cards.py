"""Model cards: a model's file, recipe, size, and the results measured with exactly its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soap import hub, recipes, zoo
from soap._files import atomic, tensor_files
from soap.auxiliary.serialization import METADATA_KEY
from soap.evaluation import PAPER, fingerprint
from soap.recipes.own_network import Factory, factory_name
from soap.recipes.purifiers import purifier_of
from soap.recipes.trained_model import TrainedModel, open_model
from soap.results import Row, Store
from soap.specs import BARE, attack_spec

HEADLINE_ATTACKS = {"none": "clean", "fgsm": "FGSM", "pgd": "PGD"}
"""Attacks whose results summarise a model, with their titles."""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """A classifier and its results.

    architecture: for a network of the user, the name of its class or function.
    rows: results in NAME.jsonl beside the weights that were measured with these weights; `foreign_rows` counts the
    others.
    """

    name: str
    path: Path
    trained: TrainedModel
    architecture: str
    parameters: int
    weights_sha256: str
    metadata: dict[str, str]
    rows: list[Row]
    foreign_rows: int

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    def distinct_rows(self) -> list[Row]:
        """One row for each attack, defence and data set: that on the most images.

        A purifier of radius 0 changes nothing, so its row is omitted beside the same result of the bare classifier.
        """
        found: dict[Any, Row] = {}
        for row in self.rows:
            key = (row.protocol, row.metric, row.data, row.attack, row.defence)
            if key not in found or found[key].n < row.n:
                found[key] = row
        counts = {key: (row.n, row.correct) for key, row in found.items()}
        return [
            row for key, row in found.items() if row.defence.eps != 0 or counts.get((*key[:-1], BARE)) != counts[key]
        ]

    def headline(self, attack: str) -> Row | None:
        """The result of the paper's attack with min-aux purification (bare without a task), on the most images."""
        recipe = self.trained.recipe
        settings = None if recipe is None else PAPER.get(recipe.data, {}).get(attack)
        if recipe is None or settings is None:
            return None
        choice = "none" if recipe.task is None else "min-aux"
        expected = (attack_spec(attack, settings), recipes.purifier_spec(recipe, choice), recipe.data)
        matching = [row for row in self.rows if (row.attack, row.defence, row.data) == expected]
        return max(matching, key=lambda row: row.n, default=None)

    def as_json(self) -> dict[str, Any]:
        """The summary as JSON."""
        headlines = {name: row.as_json() if (row := self.headline(name)) else None for name in HEADLINE_ATTACKS}
        return {
            "name": self.name,
            "file": self.path,
            "bytes": self.bytes,
            "task": self.trained.task,
            "architecture": self.architecture,
            "data": self.trained.data,
            "classes": self.trained.classes,
            "parameters": self.parameters,
            "figures": headlines,
        }

    def details(self) -> dict[str, Any]:
        """The whole card as JSON."""
        return {
            **self.as_json(),
            "file_sha256": atomic.sha256(self.path),
            "weights_sha256": self.weights_sha256,
            "metadata": self.metadata,
            "recipe": self.trained.recipe and self.trained.recipe.text,
            "rows": [row.as_json() for row in self.rows],
        }


def read_model_card(name: str, module: Factory | None = None) -> ModelCard:
    """The card of a bundled classifier, or of the weights at a path or on the hub; module: as in `soap.load`."""
    name = hub.pinned(name)
    trained, path = open_model(name, module=module), zoo.weights_path(name)
    weights = fingerprint(trained.model)
    rows = Store(path.with_suffix(".jsonl")).read()
    own = [row for row in rows if row.provenance.weights_sha256 == weights]
    metadata = tensor_files.load_tensors(path)[1]
    metadata = {key: metadata[key] for key in metadata if key not in ("recipe", "classes", METADATA_KEY)}
    return ModelCard(
        name=trained.model.name,
        path=path,
        trained=trained,
        architecture=trained.recipe.architecture if trained.recipe else factory_name(module),
        parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
        weights_sha256=weights,
        metadata=metadata,
        rows=own,
        foreign_rows=len(rows) - len(own),
    )


def read_prior_card(name: str) -> dict[str, Any]:
    """A bundled generative model, or the weights at a path, with the purifier that uses it, as JSON."""
    recipe, path = zoo.prior_recipe(name), zoo.weights_path(name)
    return {
        "name": recipe.name,
        "file": path,
        "bytes": path.stat().st_size,
        "kind": recipe.kind,
        "data": recipe.data,
        "parameters": sum(parameter.numel() for parameter in zoo.load_prior(name).parameters()),
        "purifier": purifier_of(recipe),
        "file_sha256": atomic.sha256(path),
        "recipe": recipe.text,
    }
