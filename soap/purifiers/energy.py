"""Energy descent: lower the energy -logsumexp of a classifier's logits, with no training.

A classifier with logits f(x) defines an energy E(x) = -log sum_k exp f_k(x) (Grathwohl et al. 2020). It is low near the
training images of many classifiers, so it serves as the auxiliary loss of Algorithm 2 for any classifier.
"""

from torch import nn

from soap import validate
from soap.descent import UNIT, Bounds
from soap.purifiers.sign_steps import LogitLoss, SignStepPurifier
from soap.shapes import Float, Tensor


class EnergyDescent(SignStepPurifier):
    """`EnergyDescent(model)(x)` lowers the energy of `model` inside the Linf ball of radius `eps` around `x`.

    step_size: a quarter of `eps` if None.
    """

    gradient = "straight-through"
    setting_names = ("eps", "step_size", "steps")

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        *,
        step_size: float | None = None,
        steps: int = 10,
        bounds: Bounds = UNIT,
    ) -> None:
        validate.non_negative("eps", eps)
        validate.radius(eps, bounds=bounds)
        step_size = eps / 4 if step_size is None else step_size
        super().__init__(model, eps=eps, step_size=step_size, steps=steps, bounds=bounds)

    def criterion(self, x: Float[Tensor, "batch *shape"]) -> LogitLoss:
        """Return the energy."""
        return energy_of_logits


def energy_of_logits(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch"]:
    """Return -logsumexp of the logits."""
    return -logits.logsumexp(1)
