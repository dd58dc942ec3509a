"""The L2 attack of Carlini & Wagner (2017): the smallest perturbation whose margin is wrong.

Minimises |x' - x|^2 + c * max(0, confidence - margin(x')) over w, where x' = (tanh(w) + 1) / 2 is legal for
every w, and searches for each image the smallest c that fools.
"""

import math
from dataclasses import dataclass, fields

import torch

from soap import validate
from soap.attacks.attack import Model
from soap.attacks.losses import margin
from soap.attacks.minimal import MinimalL2, per_row
from soap.balls import row_norms
from soap.descent import slope
from soap.shapes import Tensor

SQUEEZE = 0.999999
"""tanh reaches 0 and 1 at infinity only; inputs are drawn in by this factor before they are mapped to w."""

PROGRESS = 0.9999
"""A row goes on while its loss falls below this share of what it was at the last check."""

CHECKS = 10
"""Progress is checked so many times in a search step."""

BETA1, BETA2, TINY = 0.9, 0.999, 1e-8  # Adam's own letters and defaults (Kingma & Ba 2015)


@dataclass(frozen=True, kw_only=True)
class CarliniWagner(MinimalL2):
    """Adam on w for `steps` steps, `search_steps` times: c grows tenfold until it fools, then is bisected.

    A row keeps the nearest adversarial point of all steps, and is returned as it was where none was found.
    With `abort_early`, a row that makes no progress leaves the batch until the next search step.
    """

    confidence: float = 0.0
    search_steps: int = 5
    steps: int = 500
    lr: float = 0.01
    initial_c: float = 1e-3
    abort_early: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.non_negative("confidence", self.confidence)
        validate.at_least("search_steps", self.search_steps, 1)
        validate.at_least("steps", self.steps, 1)
        validate.positive("lr", self.lr)
        validate.positive("initial_c", self.initial_c)

    def search(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Search for c, row by row."""
        c = x.new_full((len(x),), self.initial_c)
        low, high = torch.zeros_like(c), torch.full_like(c, torch.inf)
        nearest = _Nearest(x)
        for _ in range(self.search_steps):
            fools = self._minimise(model, x, y, c, nearest)
            low, high = torch.where(fools, low, c), torch.where(fools, c, high)
            c = torch.where(high.isinf(), 10 * c, (low + high) / 2)
        return nearest.point

    def _minimise(self, model: Model, x: Tensor, y: Tensor, c: Tensor, nearest: "_Nearest") -> Tensor:
        """Adam at fixed c; tells which rows were fooled on the way and hands every such point to `nearest`."""
        fools = torch.zeros_like(y, dtype=torch.bool)
        w = torch.atanh((2 * x - 1) * SQUEEZE)
        zeros = torch.zeros_like(w)
        walk = _Walk(
            row=torch.arange(len(x), device=x.device),
            y=y,
            c=c,
            origin=_image(w),
            w=w,
            mean=zeros,
            square=zeros,
            checkpoint=torch.full_like(c, torch.inf),
        )

        def lead_of(image: Tensor) -> Tensor:
            return margin(model(image), walk.y)

        for step in range(self.steps):
            image = _image(walk.w)
            lead, lead_slope = slope(lead_of, image)
            adversarial = lead > self.confidence
            fools[walk.row] |= adversarial
            nearest.offer(walk.row, image, adversarial)

            moved = image - walk.origin
            losses = moved.square().flatten(1).sum(1) + walk.c * (self.confidence - lead).relu()
            pull = walk.c * (lead < self.confidence)  # the hinge is flat once the margin is wide enough
            in_image = 2 * moved - per_row(pull, image) * lead_slope
            gradient = in_image * (1 - walk.w.tanh().square()) / 2  # d image / d w
            walk.adam(gradient, lr=self.lr, t=step + 1)

            if self.abort_early and step % math.ceil(self.steps / CHECKS) == 0:
                going = losses <= PROGRESS * walk.checkpoint
                walk.checkpoint = losses
                if not going.all():
                    walk = walk.only(going)
                if len(walk.row) == 0:
                    break
        return fools


class _Nearest:
    """The nearest adversarial point of every row so far; a row without one is as it was."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.point = x.clone()
        self.distance = x.new_full((len(x),), torch.inf)

    def offer(self, row: Tensor, point: Tensor, adversarial: Tensor) -> None:
        """Take the points that are adversarial and nearer than what their row has."""
        distance = row_norms(point - self.x[row])
        better = adversarial & (distance < self.distance[row])
        self.distance[row] = torch.where(better, distance, self.distance[row])
        self.point[row] = torch.where(per_row(better, point), point, self.point[row])


@dataclass(kw_only=True)
class _Walk:
    """All that belongs to the rows still in the batch, Adam's state included; every field is [rows, ...]."""

    row: Tensor
    y: Tensor
    c: Tensor
    origin: Tensor
    w: Tensor
    mean: Tensor
    square: Tensor
    checkpoint: Tensor

    def adam(self, gradient: Tensor, *, lr: float, t: int) -> None:
        """Step number `t` (from 1)."""
        self.mean = BETA1 * self.mean + (1 - BETA1) * gradient
        self.square = BETA2 * self.square + (1 - BETA2) * gradient.square()
        unbiased = (self.square / (1 - BETA2**t)).sqrt()
        self.w = self.w - lr * self.mean / (1 - BETA1**t) / (unbiased + TINY)

    def only(self, keep: Tensor) -> "_Walk":
        """The rows to keep, in a batch of their own."""
        return _Walk(**{field.name: getattr(self, field.name)[keep] for field in fields(self)})


def _image(w: Tensor) -> Tensor:
    return (w.tanh() + 1) / 2
