"""Training schedules of classifiers and generative models: epochs, learning rate, augmentation, weight average."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from soap import validate
from soap.data import random_affine, random_crop, random_flip
from soap.errors import InputError
from soap.shapes import Tensor

AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop": lambda x, generator: random_crop(x, 4, generator),
    "flip": random_flip,
    "shift": lambda x, generator: random_crop(x, 1, generator),  # for digits, which fill more of the image
    "affine": lambda x, generator: random_affine(x, 0.1, generator),
}
"""crop: shifts by up to 4 pixels. flip: left to right. shift: by up to 1 pixel. affine: turns, scales and shears by up
to 0.1. They are applied in the order given."""

DECAYS = ("milestones", "cosine")


@dataclass(frozen=True, kw_only=True)
class BaseSchedule:
    """What all schedules have.

    augment: names of `AUGMENTATIONS`. average: decay per step of a running average of the weights, which is then the
    result; 0 keeps the last weights.
    """

    epochs: int
    lr: float
    batch_size: int = 128
    augment: tuple[str, ...] = ()
    average: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        validate.at_least("epochs", self.epochs, 1)
        validate.at_least("batch_size", self.batch_size, 1)
        validate.positive("lr", self.lr)
        validate.below_one("average", self.average)
        for name in self.augment:
            validate.choice("augment", name, tuple(AUGMENTATIONS))

    def augmented(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return a batch of images after all augmentations."""
        for name in self.augment:
            x = AUGMENTATIONS[name](x, generator)
        return x


@dataclass(frozen=True, kw_only=True)
class Schedule(BaseSchedule):
    """Schedule of SGD with momentum; the learning rate is divided by 10 at the milestones.

    milestones: fractions of the epochs. decay: "milestones", or "cosine" to lower the rate smoothly to zero, which
    suits schedules shorter than the paper's. warmup_epochs: the rate rises linearly from zero over them.
    holdout: number of training images, the last ones, that are held out to measure accuracy and choose the best epoch;
    with 0 the best epoch has the lowest training loss. Test images are never used.
    """

    momentum: float = 0.9
    weight_decay: float = 1e-4
    milestones: tuple[float, ...] = (0.5,)
    decay: str = "milestones"
    warmup_epochs: float = 0.0
    holdout: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least("holdout", self.holdout, 0)
        for name in ("momentum", "weight_decay", "warmup_epochs"):
            validate.non_negative(name, getattr(self, name))
        validate.choice("decay", self.decay, DECAYS)
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
class GenerativeSchedule(BaseSchedule):
    """Schedule of Adam, for models without labels.

    lr: the largest rate; the objective lowers it as training proceeds. betas: Adam's. warmup_steps: the rate rises
    linearly over them.
    """

    batch_size: int = 64
    average: float = 0.999
    betas: tuple[float, float] = (0.5, 0.9)
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least("warmup_steps", self.warmup_steps, 0)
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise InputError(f"betas is {self.betas!r}; expected Adam's two decay rates, e.g. [0.5, 0.9].")
        for decay in self.betas:
            validate.below_one("beta", decay)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, steps: Tensor, decay: float) -> None:
    """Move the running average of the weights and buffers towards `model`.

    Over the first steps the decay is smaller, so that the average of a short training does not lag.
    """
    share = 1 - ((1 + steps) / (10 + steps)).clamp(max=decay)
    for kept, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if kept.is_floating_point():
            kept.lerp_(new, share.to(new.dtype))
        else:  # the batch count of a batch norm
            kept.copy_(new)
