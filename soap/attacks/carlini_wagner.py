"""The L2 attack of Carlini & Wagner (2017): the smallest perturbation whose margin is wrong.

Minimises |x' - x|^2 + c * max(0, confidence - margin(x')) over w, where x' = (tanh(w) + 1) / 2 is legal for
every w, and searches for each image the smallest c that fools.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch.optim.adam import adam

from soap import validate
from soap.attacks.attack import Model
from soap.attacks.losses import margin
from soap.attacks.min_norm import MinimalL2, per_row
from soap.balls import row_norms
from soap.descent import loss_and_gradient
from soap.shapes import Tensor

SQUEEZE = 0.999999
"""tanh reaches 0 and 1 at infinity only; inputs are drawn in by this factor before they are mapped to w."""

PROGRESS = 0.9999
"""A row goes on while its loss falls below this share of what it was at the last check."""

CHECKS = 10
"""Progress is checked so many times in a search step."""

ADAM = partial(adam, fused=True, amsgrad=False, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, maximize=False)
"""One step with the defaults of Kingma & Ba (2015), in one sweep over the batch."""


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
        nearest, distance = x.clone(), torch.full_like(c, torch.inf)
        for _ in range(self.search_steps):
            fools = torch.zeros_like(y, dtype=torch.bool)
            for walk in self._minimise(model, _start(x, y, c, nearest, distance)):
                nearest[walk.row], distance[walk.row], fools[walk.row] = walk.nearest, walk.distance, walk.fools
            low, high = torch.where(fools, low, c), torch.where(fools, c, high)
            c = torch.where(high.isinf(), 10 * c, (low + high) / 2)
        return nearest

    def _minimise(self, model: Model, walk: "_Walk") -> Iterator["_Walk"]:
        """Adam at fixed c; yields the walk whenever rows are about to leave it, and at its end.

        A step is one forward pass, one backward pass and eight operations of the size of the batch. Nothing
        but the checks of progress waits for the device.
        """
        t = torch.zeros((), device=walk.w.device)  # Adam's count of steps

        def half_hinge(image: Tensor) -> Tensor:
            lead = margin(model(image), walk.y)
            walk.lead = lead.detach()
            return walk.c / 2 * (self.confidence - lead).relu()

        for step in range(self.steps):
            tanh = walk.w.tanh()
            image = _image(tanh)
            hinge, hinge_slope = loss_and_gradient(half_hinge, image)
            moved = image - walk.origin
            length = row_norms(moved)
            walk.visit(image, length, adversarial=walk.lead > self.confidence)
            # d loss / d image = 2 (moved + hinge_slope) and d image / d w = (1 - tanh^2) / 2: the twos cancel.
            walk.adam(torch.ops.aten.tanh_backward(moved + hinge_slope, tanh), lr=self.lr, t=t)

            if self.abort_early and step % math.ceil(self.steps / CHECKS) == 0:
                losses = length.square() + 2 * hinge
                going = (losses <= PROGRESS * walk.checkpoint).nonzero()[:, 0]
                walk.checkpoint = losses
                if len(going) < len(losses):
                    yield walk
                    walk = walk.only(going)
                if len(going) == 0:
                    return
        yield walk


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
    lead: Tensor
    fools: Tensor
    nearest: Tensor
    distance: Tensor

    def visit(self, image: Tensor, length: Tensor, *, adversarial: Tensor) -> None:
        """Keep the points that are adversarial and nearer than what their row has."""
        better = adversarial & (length < self.distance)
        self.fools = self.fools | adversarial
        self.distance = torch.where(better, length, self.distance)
        self.nearest = torch.where(per_row(better, image), image, self.nearest)

    def adam(self, gradient: Tensor, *, lr: float, t: Tensor) -> None:
        """One step; `w`, `mean`, `square` and the count `t` change in place."""
        # contiguous: the kernel walks through memory and knows no strides.
        ADAM([self.w], [gradient.contiguous()], [self.mean], [self.square], [], [t], lr=lr)

    def only(self, keep: Tensor) -> "_Walk":
        """The rows to keep, in a batch of their own."""
        return _Walk(**{field.name: getattr(self, field.name)[keep] for field in fields(self)})


def _start(x: Tensor, y: Tensor, c: Tensor, nearest: Tensor, distance: Tensor) -> _Walk:
    """Every row at its own image."""
    w = torch.atanh((2 * x - 1) * SQUEEZE).contiguous()
    return _Walk(
        row=torch.arange(len(x), device=x.device),
        y=y,
        c=c,
        origin=_image(w.tanh()),
        w=w,
        mean=torch.zeros_like(w),
        square=torch.zeros_like(w),
        checkpoint=torch.full_like(c, torch.inf),
        lead=torch.zeros_like(c),
        fools=torch.zeros_like(y, dtype=torch.bool),
        nearest=nearest,
        distance=distance,
    )


def _image(tanh: Tensor) -> Tensor:
    return torch.add(torch.full_like(tanh[:1], 0.5), tanh, alpha=0.5)
