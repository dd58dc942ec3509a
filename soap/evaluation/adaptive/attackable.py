"""A broken model, so wrapped that an attack takes it; what is broken about it the checks will say.

Attacks refuse a model without a gradient, one that gives probabilities, or NaN. A suite must not end there: it is to
report what such a model's figure is worth.
"""

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated
from soap.attacks.sight import look
from soap.errors import InputError
from soap.shapes import Float, Tensor


class Attackable(nn.Module):
    """The same decisions, with finite outputs, and a gradient of zero where there is none.

    Outputs are raised by one: cross-entropy and margins do not change, and rows of probabilities no longer sum to one.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inside = model

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """The model's outputs plus one."""
        logits: Tensor = self.inside(x)
        logits = logits.nan_to_num(nan=0.0, posinf=1e4, neginf=-1e4) + 1
        if torch.is_grad_enabled() and x.requires_grad:
            logits = logits + 0 * x.flatten(1).sum(1, keepdim=True)
        return logits


def attackable(model: nn.Module, x: Float[Tensor, "batch *shape"]) -> nn.Module:
    """The model itself, or `Attackable` where attacks would refuse it at `x` (a few rows are tried)."""
    few = x[:8]
    try:
        with isolated(model):
            logits, _ = look(model, few, lambda logits: logits.amax(1))
            validate.logits(logits, len(few))
    except InputError:
        return Attackable(model)
    return model
