"""Certified training: minimise a bound on the loss over all inputs that an attacker can reach (Gowal et al. 2018).

The radius grows from zero to `eps` while the weight of the bound grows from zero to `weight`: a network that starts
with the full radius does not learn. For a model whose auxiliary task is binarity the box is that of the purified
images, so the bound holds for classifier and purifier together.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from soap import validate
from soap.auxiliary import Binarity, JointLosses, JointModel, accuracy
from soap.auxiliary.binarity import rounded, rounded_box
from soap.errors import InputError
from soap.models.interval_bounds import logits_and_margins
from soap.shapes import Float, Int, Tensor


@dataclass(frozen=True, kw_only=True)
class CertifiedTraining:
    """Settings of certified training.

    eps: Linf radius at the end. weight: of the bound in the loss at the end, between 0 and 1; the rest is the weight of
    the clean loss. warmup, ramp: shares of the training before the radius grows, and while it grows.
    """

    eps: float
    weight: float = 0.5
    warmup: float = 0.02
    ramp: float = 0.6

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.radius(self.eps)
        for name in ("weight", "warmup", "ramp"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name} is {value!r}, expected a share between 0 and 1.")

    def share(self, progress: float) -> float:
        """Return how much of the radius and of the weight applies when `progress` of the training is done."""
        return min(1.0, max(0.0, (progress - self.warmup) / max(self.ramp, 1e-9)))


def certified_losses(
    model: JointModel,
    x: Float[Tensor, "batch *shape"],
    y: Int[Tensor, "batch"],
    settings: CertifiedTraining,
    share: Float[Tensor, ""],
) -> JointLosses:
    """Return the loss at share * eps and share * weight, and the accuracy on clean purified images."""
    eps, weight = share * settings.eps, share * settings.weight
    if isinstance(model.task, Binarity):
        point, (low, high) = rounded(x), rounded_box(x, eps)
    elif model.task is None:
        point, low, high = x, (x - eps).clamp(0, 1), (x + eps).clamp(0, 1)
    else:
        raise InputError(
            f"certified training got the task {type(model.task).__name__}; expected binarity, or no task: there are no "
            "bounds on what other tasks purify to."
        )
    logits, margins = logits_and_margins(model, point, low, high, y)
    bound = F.cross_entropy(-margins, y)
    loss = torch.lerp(F.cross_entropy(logits, y), bound, weight)
    return JointLosses(loss, bound.new_zeros(()), accuracy(logits, y))
