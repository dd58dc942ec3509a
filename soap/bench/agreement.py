"""Whether two paths came to the same result."""

from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.bench.subject import predicted
from soap.shapes import Float, Tensor

CLOSE = 1e-6
"""Pixels this near are equal: sums of steps and multiples of a step differ in their last bits."""


def same_pixels(one: Float[Tensor, "batch *shape"], two: Float[Tensor, "batch *shape"]) -> float:
    """Share of values that differ by at most `CLOSE` (and the rounding of that bound itself)."""
    return float(((one - two).abs() <= CLOSE * (1 + 1e-3)).double().mean())


def purified_alike(model: JointModel, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Shares of equal pixels, equal radii and equal labels of (images, eps) from two purifiers."""
    return {
        "pixels": same_pixels(ours[0], theirs[0]),
        "eps": float(((ours[1] - theirs[1]).abs() <= CLOSE).double().mean()),
        "labels": _same_labels(model, ours[0], theirs[0]),
    }


def attacked_alike(
    model: JointModel, x: Float[Tensor, "batch *shape"], y: Tensor, ours: Tensor, theirs: Tensor
) -> dict[str, float]:
    """Shares of equal pixels and labels of two attacks; how often each fools, and the mean L2 norm it needs."""
    return {
        "pixels": same_pixels(ours, theirs),
        "labels": _same_labels(model, ours, theirs),
        "fooled_ours": float((predicted(model, ours) != y).double().mean()),
        "fooled_theirs": float((predicted(model, theirs) != y).double().mean()),
        "mean_l2_ours": float(row_norms(ours - x).mean()),
        "mean_l2_theirs": float(row_norms(theirs - x).mean()),
    }


def _same_labels(model: JointModel, one: Tensor, two: Tensor) -> float:
    return float((predicted(model, one) == predicted(model, two)).double().mean())
