"""What an attack climbs: per-example losses of logits against labels, and against a class it aims at."""

import torch
from torch.nn import functional as F

from soap.errors import InputError
from soap.shapes import Float, Int, Tensor

TINY = 1e-12
"""Logits that tie make the ratio's denominator zero; it is at least this."""


def cross_entropy(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """-log p(y)."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Largest other logit minus the label's: positive exactly where the example is misclassified."""
    others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return others - _of(logits, y)


def dlr(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Difference of logits ratio (Croce & Hein 2020): the margin over z1 - z3, where z1 >= z2 >= ... are the logits.

    Scaling or shifting the logits does not change it, so an attack cannot be starved by a confident network. At most
    1 where the example is misclassified; at least 3 classes.
    """
    first, _, third = _largest(logits, 3, "dlr").unbind(1)
    return margin(logits, y) / (first - third).clamp_min(TINY)


def targeted_margin(
    logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"], target: Int[Tensor, "batch"]
) -> Float[Tensor, "batch"]:
    """The target's logit minus the label's: the example is misclassified where it is positive."""
    return _of(logits, target) - _of(logits, y)


def targeted_dlr(
    logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"], target: Int[Tensor, "batch"]
) -> Float[Tensor, "batch"]:
    """The targeted margin over z1 - (z3 + z4) / 2 (Croce & Hein 2020); at least 4 classes."""
    first, _, third, fourth = _largest(logits, 4, "targeted-dlr").unbind(1)
    return targeted_margin(logits, y, target) / (first - (third + fourth) / 2).clamp_min(TINY)


LOSSES = {"ce": cross_entropy, "margin": margin, "dlr": dlr}

TARGETED = {"targeted-dlr": targeted_dlr, "targeted-margin": targeted_margin}


def _of(logits: Tensor, y: Tensor) -> Tensor:
    return logits.gather(1, y[:, None])[:, 0]


def _largest(logits: Tensor, k: int, name: str) -> Tensor:
    """The `k` largest logits of every row, in falling order."""
    if logits.shape[1] < k:
        raise InputError(
            f"the model tells {logits.shape[1]} classes apart, but the loss {name!r} compares {k} logits; "
            "take 'margin' or 'ce'."
        )
    return logits.topk(k, dim=1).values
