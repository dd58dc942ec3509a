"""The L2 attack of Carlini & Wagner (2017): the smallest perturbation with a positive margin.

Minimises |x' - x|^2 + c * max(0, confidence - margin(x')) over w, where x' = (tanh(w) + 1) / 2 is inside [0, 1] for
every w (scaled for other bounds), and searches for the smallest successful c of each image.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch.optim.adam import adam

from soap import validate
from soap.attacks.attack import Model
from soap.attacks.losses import objective
from soap.attacks.min_norm import MinimalL2
from soap.balls import per_sample, row_norms
from soap.descent import Bounds, loss_and_gradient
from soap.shapes import Tensor

BOX_SHRINK = 0.999999
"""tanh reaches the bounds at infinity only; inputs are moved inside by this factor before they are mapped to w."""

MIN_PROGRESS = 0.9999
"""A sample continues while its lowest loss is below this share of its lowest loss two checks earlier. Adam's losses go
up and down: compared at single steps, or with the last check, they stop samples that would still come nearer."""

PROGRESS_CHECKS = 10
"""Number of progress checks in a search step."""

ADAM = partial(adam, fused=True, amsgrad=False, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, maximize=False)
"""One Adam step with the defaults of Kingma & Ba (2015), as one kernel for the whole batch."""


@dataclass(frozen=True, kw_only=True, repr=False)
class CarliniWagner(MinimalL2):
    """Adam on w for `steps` steps, `search_steps` times: c grows tenfold until the first success, then is bisected.

    A sample keeps its nearest adversarial point of all steps, and is returned unchanged if there is none. With
    `abort_early`, a sample without progress leaves the batch until the next search step.
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
        """Search for the smallest successful c of every sample."""
        c = x.new_full((len(x),), self.initial_c)
        low, high = torch.zeros_like(c), torch.full_like(c, torch.inf)
        nearest, distance = x.clone(), torch.full_like(c, torch.inf)
        box = _Box.of(self.bounds)
        for _ in range(self.search_steps):
            succeeded = torch.zeros_like(y, dtype=torch.bool)
            for part in self._minimise(model, box, _start(x, y, c, nearest, distance, box)):
                nearest[part.row], distance[part.row] = part.nearest, part.distance
                succeeded[part.row] = part.succeeded
            low, high = torch.where(succeeded, low, c), torch.where(succeeded, c, high)
            c = torch.where(high.isinf(), 10 * c, (low + high) / 2)
        return nearest

    def _minimise(self, model: Model, box: "_Box", state: "_SearchState") -> Iterator["_SearchState"]:
        """Run Adam at fixed c; yield the state whenever samples are about to leave it, and at the end.

        A step costs one forward pass, one backward pass and eight operations on the batch. Only the progress checks
        wait for the device.
        """
        t = torch.zeros((), device=state.w.device)  # Adam's number of steps
        margin = objective("margin", self.targeted)

        def half_hinge(image: Tensor) -> Tensor:
            lead = margin(model(image), state.y)
            state.lead = lead.detach()
            return state.c / 2 * (self.confidence - lead).relu()

        for step in range(self.steps):
            tanh = state.w.tanh()
            image = box.image(tanh)
            hinge, hinge_gradient = loss_and_gradient(half_hinge, image)
            moved = image - state.origin
            length = row_norms(moved)
            state.visit(image, length, adversarial=state.lead > self.confidence)
            # d loss / d image = 2 (moved + hinge_gradient) and d image / d w = half (1 - tanh^2); 2 half = 1 in [0, 1].
            gradient = torch.ops.aten.tanh_backward(moved + hinge_gradient, tanh)
            state.adam(gradient if box.half == 0.5 else 2 * box.half * gradient, lr=self.lr, t=t)

            if self.abort_early:
                state.lowest = state.lowest.minimum(length.square() + 2 * hinge)
            if self.abort_early and step % math.ceil(self.steps / PROGRESS_CHECKS) == 0:
                going = (state.lowest <= MIN_PROGRESS * state.earlier).nonzero()[:, 0]
                state.earlier, state.checkpoint = state.checkpoint, state.lowest
                if len(going) < len(hinge):
                    yield state
                    state = state.only(going)
                if len(going) == 0:
                    return
        yield state


@dataclass(frozen=True, kw_only=True)
class _Box:
    """The valid inputs as centre + half * tanh(w)."""

    centre: float
    half: float

    @classmethod
    def of(cls, bounds: Bounds) -> "_Box":
        low, high = bounds
        return cls(centre=(low + high) / 2, half=(high - low) / 2)

    def image(self, tanh: Tensor) -> Tensor:
        return torch.add(torch.full_like(tanh[:1], self.centre), tanh, alpha=self.half)

    def w(self, image: Tensor) -> Tensor:
        return torch.atanh((image - self.centre) / self.half * BOX_SHRINK).contiguous()


@dataclass(kw_only=True)
class _SearchState:
    """State of the samples in the batch, Adam's included; every field is [samples, ...]."""

    row: Tensor
    y: Tensor
    c: Tensor
    origin: Tensor
    w: Tensor
    mean: Tensor
    square: Tensor
    lowest: Tensor  # loss so far
    checkpoint: Tensor  # `lowest` at the last check
    earlier: Tensor  # and at the one before
    lead: Tensor
    succeeded: Tensor
    nearest: Tensor
    distance: Tensor

    def visit(self, image: Tensor, length: Tensor, *, adversarial: Tensor) -> None:
        """Keep the points that are adversarial and nearer than the sample's nearest one."""
        better = adversarial & (length < self.distance)
        self.succeeded = self.succeeded | adversarial
        self.distance = torch.where(better, length, self.distance)
        self.nearest = torch.where(per_sample(better, image), image, self.nearest)

    def adam(self, gradient: Tensor, *, lr: float, t: Tensor) -> None:
        """Take one Adam step; `w`, `mean`, `square` and the step number `t` change in place."""
        # contiguous: the fused kernel reads memory in order and ignores strides.
        ADAM([self.w], [gradient.contiguous()], [self.mean], [self.square], [], [t], lr=lr)

    def only(self, keep: Tensor) -> "_SearchState":
        """Return the state of the samples to keep."""
        return _SearchState(**{field.name: getattr(self, field.name)[keep] for field in fields(self)})


def _start(x: Tensor, y: Tensor, c: Tensor, nearest: Tensor, distance: Tensor, box: _Box) -> _SearchState:
    """Return the state of every sample at its own image."""
    w = box.w(x)
    return _SearchState(
        row=torch.arange(len(x), device=x.device),
        y=y,
        c=c,
        origin=box.image(w.tanh()),
        w=w,
        mean=torch.zeros_like(w),
        square=torch.zeros_like(w),
        lowest=torch.full_like(c, torch.inf),
        checkpoint=torch.full_like(c, torch.inf),
        earlier=torch.full_like(c, torch.inf),
        lead=torch.zeros_like(c),
        succeeded=torch.zeros_like(y, dtype=torch.bool),
        nearest=nearest,
        distance=distance,
    )
