"""What an auxiliary task is: a label-free loss that shares the encoder with the classifier.

To add one, write one file with a subclass (see examples/): its head h, the losses it trains with, and the
per-example loss it purifies with.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import nn

from soap.models import Network
from soap.shapes import Float, Int, Tensor


class JointLosses(NamedTuple):
    """One training step's losses (scalars) and the share of its views that were classified rightly."""

    classification: Tensor
    auxiliary: Tensor
    accuracy: Tensor


class AuxiliaryTask(nn.Module, ABC):
    """A label-free task; `alpha` weighs its training loss against classification (Eq. 2)."""

    alpha: float

    def settings(self) -> dict[str, Any]:
        """Settings that change the purification loss or its gradient, as JSON values; result rows store them."""
        return {}

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())

    @abstractmethod
    def losses(
        self,
        model: "Classifies",
        x: Float[Tensor, "batch *shape"],
        y: Int[Tensor, "batch"],
        generator: torch.Generator,
    ) -> JointLosses:
        """What joint training minimises: classification + alpha * auxiliary, on the task's own noisy views."""

    @abstractmethod
    def loss(self, model: "Classifies", x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """What purification descends: one loss a row, without noise, differentiable in `x`."""


class Classifies(nn.Module):
    """z = f(x) and g(z): the part of a joint model that tasks call.

    `recordable` lets attacks, purifiers and training replay it as a CUDA graph. Set it to True on a model of your own
    whose encoder, classifier and task never wait for the host (no `.item()`, say); recipes' models have it.
    """

    recordable: bool = False
    encoder: nn.Module
    classifier: nn.Module
    input_shape: tuple[int, ...]
    classes: int

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encoder = network.encoder
        self.classifier = network.classifier
        self.input_shape = network.inputs
        self.classes = network.classes

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Logits of g(f(x))."""
        logits: Tensor = self.classifier(self.encoder(x))
        return logits


def accuracy(logits: Float[Tensor, "n classes"], y: Int[Tensor, "n"]) -> Float[Tensor, ""]:
    """Share of rows whose largest logit is the label's, left on the device."""
    return (logits.detach().argmax(1) == y).float().mean()
