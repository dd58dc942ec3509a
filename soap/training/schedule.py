"""Training schedules: epochs, learning rate and augmentation of classifiers (`Schedule`) and generative models."""

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
    """Schedule of SGD with momentum; the learning rate is divided by 10 at the milestones.

    milestones: fractions of the epochs. decay: "milestones", or "cosine" to lower the rate smoothly to zero, which
    suits schedules shorter than the paper's. warmup_epochs: the rate rises linearly from zero over them.
    holdout: number of training images, the last ones, that are held out to measure accuracy and choose the best epoch;
    with 0 the best epoch has the lowest training loss. Test images are never used.
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
                raise InputError(f"milestone is {share!r}; expected a fraction of the epochs between 0 and 1.")

    def rate(self, epoch: float) -> float:
        """Return the learning rate after `epoch` epochs."""
        warm = min(1.0, epoch / self.warmup_epochs) if self.warmup_epochs else 1.0
        if self.decay == "cosine":
            return self.lr * warm * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        drops = sum(math.floor(epoch) >= max(1, round(share * self.epochs)) for share in self.milestones)
        return float(self.lr * warm * 0.1**drops)


@dataclass(frozen=True, kw_only=True)
class GenerativeSchedule:
    """Schedule of Adam with a running average of the weights, for models without labels.

    lr: the largest rate; the objective lowers it as training proceeds. betas: Adam's. warmup_steps: the rate rises
    linearly over them. average: decay of the running average per step; 0 keeps the last weights. augment: names as in
    `Schedule`.
    """

    epochs: int
    lr: float
    batch: int = 64
    betas: tuple[float, float] = (0.5, 0.9)
    warmup_steps: int = 0
    average: float = 0.999
    augment: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        validate.at_least("epochs", self.epochs, 1)
        validate.at_least("batch", self.batch, 1)
        validate.positive("lr", self.lr)
        validate.at_least("warmup_steps", self.warmup_steps, 0)
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise InputError(f"betas is {self.betas!r}; expected Adam's two decay rates, e.g. [0.5, 0.9].")
        for name, decay in (("beta", self.betas[0]), ("beta", self.betas[1]), ("average", self.average)):
            if not 0 <= decay < 1:
                raise InputError(f"{name} is {decay!r}; expected a decay rate in [0, 1).")
        for name in self.augment:
            validate.choice("augment", name, tuple(AUGMENTATIONS))
