"""PurifiedEnds: gradient steps between the two purified images at the ends of the attacker's ball.

Rounding, thresholds and bit depth reduction change each value by itself and never reverse an order. Behind such a
purifier an attacker of radius eps chooses a purified value between two ends only: those of x - eps and x + eps. On the
line between them, low + t (high - low), the classifier is smooth, although no gradient passes through the purifier. So
the attack moves t by the classifier's gradient there, and tries the image that t stands for every few steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from soap import validate
from soap._runtime.seeding import streams, uniform
from soap.attacks.attack import Attack, Model, in_parts, logits_of
from soap.attacks.losses import margin, targeted_margin
from soap.descent import UNIT, Bounds, loss_and_gradient
from soap.errors import InputError
from soap.gradient_rules.rule import Purify, purified_images
from soap.shapes import Float, Int, Tensor
from soap.validate import describe

FIRST_STEP, MOMENTUM, TRY_EVERY = 0.4, 0.75, 5
"""Share of the line that the first step covers (later ones are shorter), and steps between two tries."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PurifiedEnds(Attack):
    """Search the Linf ball of radius `eps` of a `Defence` whose purifier changes each value by itself, in order.

    Each of the `restarts` runs `steps` sign steps with momentum on the margin, and again on the margin of each of the
    `targets` most probable wrong classes; with `targeted` there is one class to reach, `y`. A step costs one forward
    and one backward pass of the classifier; a try, one purification of the image of t and one of the image in which t
    is rounded to 0 or 1. The first run starts in the middle, others at random points drawn from `seed` and the sample.
    A sample leaves once it reaches the goal; of others the try with the largest margin is the result.
    """

    eps: float
    steps: int = 100
    targets: int = 3
    restarts: int = 1
    seed: int = 0
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        for name in ("steps", "targets", "restarts"):
            validate.at_least(name, getattr(self, name), 1)
        validate.at_least("seed", self.seed, 0)

    def perturb(
        self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *shape"]:
        """Make all runs, each for the samples without success so far."""
        if getattr(model, "classifier", None) is None or getattr(model, "purifier", None) is None:
            raise InputError(
                f"got the model {describe(model)}, expected a soap.Defence with a purifier; PurifiedEnds needs both."
            )
        logits = logits_of(model, x)
        found, height = x.clone(), self._height(logits, y)
        wrong = logits.scatter(1, y[:, None], -torch.inf)
        others = 0 if self.targeted else min(self.targets, logits.shape[1] - 1)
        aims = [y, *wrong.topk(others, dim=1).indices.unbind(1)]
        for restart in range(self.restarts):
            for number, aim in enumerate(aims):
                rows = (height <= 0).nonzero()[:, 0]
                if len(rows) == 0:
                    return found
                stream = streams(x[rows], self.seed, restart, number) if restart else None
                for tried, margins in self._run(model, x[rows], y[rows], aim[rows], stream):
                    better = margins > height[rows]
                    found[rows[better]], height[rows[better]] = tried[better], margins[better]
        return found

    def _height(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the margin of the goal: positive where it is reached."""
        return -margin(logits, y) if self.targeted else margin(logits, y)

    def _run(
        self, defence: Any, x: Tensor, y: Tensor, aim: Tensor, stream: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tried images and their margins. aim: another class to reach, or `y` itself for the goal."""
        classifier: Model = defence.classifier
        purifier: Purify = defence.purifier
        least, most = ((x + move).clamp(*self.bounds) for move in (-self.eps, self.eps))
        low, high = (purified_images(purifier, end) for end in (least, most))

        def step(t: Tensor, low: Tensor, high: Tensor, y: Tensor, aim: Tensor) -> tuple[Tensor, ...]:
            def loss(t: Tensor) -> Tensor:
                logits = classifier(torch.lerp(low, high, t))
                return torch.where(aim == y, self._height(logits, y), targeted_margin(logits, y, aim))

            return loss_and_gradient(loss, t)

        t = torch.full_like(x, 0.5) if stream is None else uniform(stream, x[0].numel()).to(x).reshape(x.shape)
        velocity, ending = torch.zeros_like(t), torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for number in range(self.steps):
            _, gradient = in_parts(step, t, low, high, y, aim)
            size = gradient.abs().flatten(1).mean(1).clamp_min(torch.finfo(t.dtype).tiny)
            velocity = MOMENTUM * velocity + gradient / size.reshape(-1, *[1] * (x.ndim - 1))
            t = (t + FIRST_STEP * (1 - number / self.steps) * velocity.sign()).clamp(0, 1)
            if number % TRY_EVERY == TRY_EVERY - 1 or number == self.steps - 1:
                for place in (t.round(), t):
                    tried = torch.lerp(least, most, place)
                    margins = self._height(logits_of(defence, tried), y)
                    yield tried, margins
                    ending |= margins > 0
                if ending.all():
                    return
