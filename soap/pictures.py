"""The model a command works with: its recipe, what its classes are called, and what it says to images."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from soap import zoo
from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel
from soap.cli.shell import Shell
from soap.cli.tables import class_names, percent
from soap.purifiers import Purified
from soap.recipes import Recipe
from soap.shapes import Float, Tensor


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model says to one image: the class, what it is called, and its probability."""

    label: int
    name: str
    confidence: float

    def __str__(self) -> str:
        return f"{self.name} ({percent(self.confidence)})"

    def as_json(self) -> dict[str, Any]:
        """The answer for machines."""
        return {"label": self.label, "name": self.name, "confidence": round(self.confidence, 6)}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A loaded model with its recipe and the names of its classes."""

    model: JointModel
    recipe: Recipe
    classes: list[str]

    def answers(self, x: Float[Tensor, "n *shape"], *, batch: int) -> list[Answer]:
        """The bare classifier's answers."""
        found = []
        for part in torch.split(x, batch):
            with isolated(self.model), torch.no_grad():
                confidences, labels = self.model(part).softmax(1).max(1)
            pairs = zip(labels.tolist(), confidences.tolist(), strict=True)
            found += [Answer(label=label, name=self.classes[label], confidence=share) for label, share in pairs]
        return found


def load(shell: Shell, name: str) -> Subject:
    """The model called `name`, or in a file of that path, on the command's device."""
    model, recipe = zoo.load(name, device=shell.device), zoo.recipe(name)
    return Subject(model=model, recipe=recipe, classes=class_names(recipe, model.classes))


def purified(shell: Shell, purifier: Callable[[Tensor], Purified], x: Float[Tensor, "n *shape"]) -> Purified:
    """All images purified, a batch at a time, behind a progress bar."""
    parts: list[Purified] = []
    with shell.progress() as show:
        for part in torch.split(x, shell.batch):
            parts.append(purifier(part))
            show("purifying", sum(len(done.x) for done in parts), len(x))
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Purified)}
    return Purified(**{name: torch.cat(column) for name, column in columns.items()})
