"""A wrapper that lets attacks run on a model with NaN logits, probabilities or no gradient.

Attacks raise an error for such a model. An evaluation suite must still run, so that its checks can report the flaw.
"""

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated
from soap.errors import InputError
from soap.gradient_rules.rule import logits_and_gradient
from soap.shapes import Float, Tensor


class FiniteLogits(nn.Module):
    """The same predictions as `model`, with finite outputs, and a zero gradient where the model has none.

    Outputs are increased by one. Cross-entropy and margins do not change, and probabilities no longer sum to one, so
    the check for a softmax layer accepts them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the finite outputs of the model plus one."""
        logits: Tensor = self.model(x)
        logits = logits.nan_to_num(nan=0.0, posinf=1e4, neginf=-1e4) + 1
        if torch.is_grad_enabled() and x.requires_grad:
            logits = logits + 0 * x.flatten(1).sum(1, keepdim=True)
        return logits


def with_finite_logits(model: nn.Module, x: Float[Tensor, "batch *shape"]) -> nn.Module:
    """Return `model`, or `FiniteLogits(model)` if attacks would raise an error for it (tested on 8 samples of `x`)."""
    few = x[:8]
    try:
        with isolated(model):
            logits, _ = logits_and_gradient(model, few, lambda logits: logits.amax(1))
            validate.logits(logits, len(few))
    except InputError:
        return FiniteLogits(model)
    return model
