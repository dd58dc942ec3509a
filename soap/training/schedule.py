"""How long, how fast and on which augmented images to train."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from soap import validate
from soap.data import random_crop, random_flip
from soap.errors import InputError
from soap.shapes import Tensor

AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop": lambda x, generator: random_crop(x, 4, generator),
    "flip": random_flip,
}


DECAYS = ("milestones", "cosine")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast to train: SGD with momentum, the rate divided by 10 at the milestones.

    milestones: shares of the epochs. decay: "milestones", or "cosine" to let the rate fall smoothly to zero instead,
    which suits schedules shorter than the paper's. warmup_epochs: the rate rises linearly from zero over them.
    holdout: how many of the last training images are kept out to measure accuracy and choose the best epoch;
    with none, the best epoch is that of least training loss. Test images are never looked at.
    """

    epochs: int
    lr: float
    batch: int = 128
    momentum: float = 0.9
    weight_decay: float = 1e-4
    milestones: tuple[float, ...] = (0.5,)
    decay: str = "milestones"
    warmup_epochs: float = 0.0
    augment: tuple[str, ...] = ()
    holdout: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        validate.at_least("epochs", self.epochs, 1)
        validate.at_least("batch", self.batch, 1)
        validate.at_least("holdout", self.holdout, 0)
        validate.positive("lr", self.lr)
        validate.non_negative("momentum", self.momentum)
        validate.non_negative("weight_decay", self.weight_decay)
        validate.non_negative("warmup_epochs", self.warmup_epochs)
        validate.choice("decay", self.decay, DECAYS)
        for name in self.augment:
            validate.choice("augment", name, tuple(AUGMENTATIONS))
        for share in self.milestones:
            if not 0 < share < 1:
                raise InputError(f"milestone {share!r} is not a share of the epochs; want a number between 0 and 1.")

    def rate(self, epoch: float) -> float:
        """The learning rate at a point of time measured in epochs."""
        warm = min(1.0, epoch / self.warmup_epochs) if self.warmup_epochs else 1.0
        if self.decay == "cosine":
            return self.lr * warm * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        drops = sum(math.floor(epoch) >= max(1, round(share * self.epochs)) for share in self.milestones)
        return float(self.lr * warm * 0.1**drops)
