"""Losses that attacks increase: per-sample losses of logits for a label, and for a label and a target class."""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from soap import validate
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor
from soap.specs import function_name

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


def probability(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Return -p(y). It is bounded, so its mean over draws of a random model is not ruled by draws already broken."""
    return -_of(logits.softmax(1), y)


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


LOSSES = {"ce": cross_entropy, "margin": margin, "dlr": dlr, "probability": probability}
"""Losses of logits and a label, by name."""

TARGETED = {"targeted-dlr": targeted_dlr, "targeted-margin": targeted_margin}
"""Losses of logits, the true label and a target class, by name."""


LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(logits [batch, classes], y [batch]) -> one loss per sample [batch]; higher is worse for the defender."""


def objective(loss: str | LossFunction, targeted: bool) -> LossFunction:
    """Return the loss that an attack increases: that of the label `y`, or the negative one of the target class `y`."""
    function = LOSSES[loss] if isinstance(loss, str) else _one_per_sample(loss)
    return (lambda logits, y: -function(logits, y)) if targeted else function


def check_loss(loss: str | LossFunction, names: Sequence[str]) -> None:
    """Raise unless `loss` is one of the names or a function."""
    if not callable(loss):
        validate.choice("loss", loss, tuple(names))


def _one_per_sample(loss: LossFunction) -> LossFunction:
    """Return the user's loss with a check of its shape."""

    def checked(logits: Tensor, y: Tensor) -> Tensor:
        values = loss(logits, y)
        if not isinstance(values, Tensor) or values.shape != y.shape:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise InputError(
                f"the loss {function_name(loss)} returned {got} for {len(y)} samples, expected a tensor with one loss "
                "per sample; do not take the mean over the batch."
            )
        return values

    return checked


def _of(logits: Tensor, y: Tensor) -> Tensor:
    return logits.gather(1, y[:, None])[:, 0]


def _largest(logits: Tensor, k: int, name: str) -> Tensor:
    """Return the `k` largest logits of every sample, in descending order."""
    if logits.shape[1] < k:
        raise InputError(
            f"the model has {logits.shape[1]} classes, but the loss {name!r} compares {k} logits; use 'margin' or 'ce'."
        )
    return logits.topk(k, dim=1).values
