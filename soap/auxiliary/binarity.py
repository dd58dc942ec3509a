"""Binarity: how far pixels are from black and white. Descending it rounds an image, which removes small perturbations.

The loss of a pixel, v^2 (1 - v)^2, is zero at 0 and 1 and has its maximum at 1/2. Sign steps on it with a radius of 1/2
end at round(v): pixels below 1/2 become 0, pixels above become 1 (a pixel of exactly 1/2 does not move). So a
perturbation of at most eps changes a purified pixel only if the clean pixel is within eps of 1/2; all others end at the
same value. The task has no weights and no head: it suits images that are almost binary, such as MNIST, and no others.
"""

import torch
from torch.nn import functional as F

from soap.auxiliary.joint import AuxiliaryTask, JointLosses, JointModel, accuracy
from soap.shapes import Float, Int, Tensor

RADIUS = 0.5
"""The radius within which every value reaches 0 or 1."""


class Binarity(AuxiliaryTask):
    """sum v^2 (1 - v)^2 over the pixels. The classifier is trained on rounded images, which purification gives it."""

    alpha = 0.0  # nothing of the loss depends on weights

    def losses(
        self, model: JointModel, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"], generator: torch.Generator
    ) -> JointLosses:
        """Classify the rounded images."""
        logits = model(rounded(x))
        return JointLosses(F.cross_entropy(logits, y), logits.new_zeros(()), accuracy(logits, y))

    def loss(self, model: JointModel, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """Return sum v^2 (1 - v)^2 over the pixels of every image."""
        return (x * (1 - x)).square().flatten(1).sum(1)


def rounded(x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
    """Return the images at which purification ends: 0 below 1/2, 1 above it, and 1/2 unchanged."""
    return torch.where(x == RADIUS, x, (x > RADIUS).to(x.dtype))


def ends_at_rounded(model: JointModel) -> bool:
    """Return whether the model's own purifier returns `rounded(x)`: for binarity, if its steps and radii reach it."""
    own = model.purification
    if own is None or not isinstance(model.task, Binarity):
        return False
    return own.step_size * own.steps >= RADIUS and min(own.grid) >= RADIUS


def rounded_box(
    x: Float[Tensor, "batch *shape"], eps: float | Tensor
) -> tuple[Float[Tensor, "batch *shape"], Float[Tensor, "batch *shape"]]:
    """Return the lowest and highest purified image of all images within `eps` of `x` (Linf), pixel by pixel.

    Exact: rounding is monotone and acts on each pixel alone, and [0, 1] is an interval.
    """
    return rounded((x - eps).clamp(0, 1)), rounded((x + eps).clamp(0, 1))
