"""What an attack climbs: per-example losses of logits against labels."""

import torch
from torch.nn import functional as F

from soap.shapes import Float, Int, Tensor


def cross_entropy(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """-log p(y)."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Largest other logit minus the label's: positive exactly where the example is misclassified."""
    label = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return others - label


LOSSES = {"ce": cross_entropy, "margin": margin}
