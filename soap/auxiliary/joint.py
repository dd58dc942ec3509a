"""The joint model (Figure 1 of the paper): encoder f, classifier g and an auxiliary task h on the same features z.

To add a task, write one file with a subclass of `AuxiliaryTask` (see examples/own_task.py): its head h, its training
losses, and the per-sample loss that purification minimises.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from soap.errors import InputError
from soap.models import Network
from soap.shapes import Float, Int, Tensor
from soap.specs import TrainingSpec


class JointLosses(NamedTuple):
    """Scalar losses of one training step, and the share of its views that are correctly classified."""

    classification: Tensor
    auxiliary: Tensor
    accuracy: Tensor


@dataclass(frozen=True, kw_only=True)
class Purification:
    """A model's default purifier settings: gamma, T and the radii to choose from, in input units."""

    step_size: float
    steps: int
    grid: tuple[float, ...]


class AuxiliaryTask(nn.Module, ABC):
    """A self-supervised task; `alpha` weighs its loss against the classification loss in training (Eq. 2)."""

    alpha: float

    def settings(self) -> dict[str, Any]:
        """Return the settings that change the purification loss or its gradient, as JSON values for result rows."""
        return {}

    def extra_repr(self) -> str:
        """Return the settings as text, for `repr`."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())

    @abstractmethod
    def losses(
        self,
        model: "JointModel",
        x: Float[Tensor, "batch *shape"],
        y: Int[Tensor, "batch"],
        generator: torch.Generator,
    ) -> JointLosses:
        """Return the losses on noisy views; training minimises classification + alpha * auxiliary."""

    @abstractmethod
    def loss(self, model: "JointModel", x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """Return the loss that purification minimises: one per sample, without noise, differentiable in `x`."""


class JointModel(nn.Module):
    """`model(x)` returns logits g(f(x)); `model.auxiliary.loss(model, x)` returns the auxiliary loss of each sample.

    `task` is None for networks without an auxiliary task (No Def, adversarial training): they cannot be purified.
    `training_spec` describes how the weights were trained, and `source` where they were loaded from, if known.
    `class_names` are those of the training data; None for numbers. `normalisation` holds mean and std of `soap.wrap`.

    `recordable` allows attacks, purifiers and training to replay the model as a CUDA graph. Set it to True on your own
    model if its encoder, classifier and task never wait for the host (no `.item()`); models of recipes have it.
    """

    recordable: bool = False
    encoder: nn.Module
    classifier: nn.Module
    input_shape: tuple[int, ...]
    classes: int

    def __init__(
        self,
        network: Network,
        auxiliary: AuxiliaryTask | None = None,
        *,
        purification: Purification | None = None,
        name: str = "model",
    ) -> None:
        super().__init__()
        self.encoder = network.encoder
        self.classifier = network.classifier
        self.input_shape = network.inputs
        self.classes = network.classes
        self.task = auxiliary
        self.purification = purification
        self.name = name
        self.training_spec: TrainingSpec | None = None
        self.class_names: tuple[str, ...] | None = None
        self.normalisation: dict[str, float | Sequence[float]] = {}
        self.source: str | None = None

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logits g(f(x))."""
        logits: Tensor = self.classifier(self.encoder(x))
        return logits

    @property
    def purifiable(self) -> bool:
        """Whether the model has an auxiliary task."""
        return self.task is not None

    @property
    def alpha(self) -> float:
        """The weight of the auxiliary loss in training (Eq. 2); 0 without a task."""
        return 0.0 if self.task is None else self.task.alpha

    @property
    def auxiliary(self) -> AuxiliaryTask:
        """The auxiliary task; raises `InputError` if there is none."""
        if self.task is None:
            raise InputError(
                f"{self.name} was trained without an auxiliary task, so it has no loss to purify with; "
                "use a SOAP model (`soap models` lists them) or add a task with soap.wrap."
            )
        return self.task


def accuracy(logits: Float[Tensor, "n classes"], y: Int[Tensor, "n"]) -> Float[Tensor, ""]:
    """Return the share of correctly classified samples as a tensor on the device."""
    return (logits.detach().argmax(1) == y).float().mean()
