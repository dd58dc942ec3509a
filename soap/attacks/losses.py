"""Losses that attacks increase: per-sample losses of logits for a label, and for a label and a target class."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from soap.errors import InputError
from soap.shapes import Float, Int, Tensor

MIN_LOGIT_GAP = 1e-12
"""Lower limit of the denominator of the DLR losses, which is zero for equal logits."""


def cross_entropy(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Return -log p(y)."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Return the largest other logit minus the label's: positive exactly where the sample is misclassified."""
    others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return others - _of(logits, y)


def dlr(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Return the difference of logits ratio (Croce & Hein 2020): margin / (z1 - z3), logits sorted z1 >= z2 >= ....

    It does not change if logits are scaled or shifted, so large logits do not make its gradient vanish. At most 1 for
    misclassified samples. Needs at least 3 classes.
    """
    first, _, third = _largest(logits, 3, "dlr").unbind(1)
    return margin(logits, y) / (first - third).clamp_min(MIN_LOGIT_GAP)


def targeted_margin(
    logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"], target: Int[Tensor, "batch"]
) -> Float[Tensor, "batch"]:
    """Return the target's logit minus the label's: if positive, the sample is misclassified."""
    return _of(logits, target) - _of(logits, y)


def targeted_dlr(
    logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"], target: Int[Tensor, "batch"]
) -> Float[Tensor, "batch"]:
    """Return the targeted margin / (z1 - (z3 + z4) / 2) (Croce & Hein 2020). Needs at least 4 classes."""
    first, _, third, fourth = _largest(logits, 4, "targeted-dlr").unbind(1)
    return targeted_margin(logits, y, target) / (first - (third + fourth) / 2).clamp_min(MIN_LOGIT_GAP)


LOSSES = {"ce": cross_entropy, "margin": margin, "dlr": dlr}
"""Losses of logits and a label, by name."""

TARGETED = {"targeted-dlr": targeted_dlr, "targeted-margin": targeted_margin}
"""Losses of logits, the true label and a target class, by name."""


def objective(name: str, targeted: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss that an attack increases: that of the label `y`, or the negative one of the target class `y`."""
    loss = LOSSES[name]
    return (lambda logits, y: -loss(logits, y)) if targeted else loss


def _of(logits: Tensor, y: Tensor) -> Tensor:
    return logits.gather(1, y[:, None])[:, 0]


def _largest(logits: Tensor, k: int, name: str) -> Tensor:
    """Return the `k` largest logits of every sample, in descending order."""
    if logits.shape[1] < k:
        raise InputError(
            f"the model has {logits.shape[1]} classes, but the loss {name!r} compares {k} logits; use 'margin' or 'ce'."
        )
    return logits.topk(k, dim=1).values
