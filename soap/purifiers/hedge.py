"""Hedge defence (Wu et al. 2021): attack the input towards all classes at once.

The steps ascend the sum of the cross-entropies to all classes. An adversarially trained network is smoother around the
true class than around the class that an attack reached, so the steps change wrong predictions more often than correct
ones. For other networks the paper claims nothing.
"""

from torch import nn

from soap import validate
from soap._runtime.seeding import streams, uniform
from soap.descent import UNIT, Bounds
from soap.purifiers.sign_steps import LogitLoss, SignStepPurifier
from soap.shapes import Float, Tensor


class Hedge(SignStepPurifier):
    """`Hedge(model)(x)` increases the sum over classes of the cross-entropy of `model`, inside a ball around `x`.

    eps, step_size, steps: the defaults are the paper's for CIFAR-10. The steps begin at a random point of the ball,
    drawn from `seed` and the image's own values, so that a result does not depend on the other samples of the batch.
    `path` begins at that point, too.
    """

    setting_names = ("eps", "step_size", "steps", "seed")

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        *,
        step_size: float = 4 / 255,
        steps: int = 20,
        seed: int = 0,
        bounds: Bounds = UNIT,
    ) -> None:
        validate.at_least("seed", seed, 0)
        validate.radius(eps, bounds=bounds)
        super().__init__(model, eps=eps, step_size=step_size, steps=steps, bounds=bounds)
        self.seed = seed

    def criterion(self, x: Float[Tensor, "batch *shape"]) -> LogitLoss:
        """Return the sum over classes of log p: descending it ascends the sum of cross-entropies."""
        return sum_of_log_probabilities

    def start(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return a random point of the ball, inside the bounds."""
        share = 2 * uniform(streams(x, self.seed), x[0].numel()) - 1
        return (x + self.eps * share.reshape(x.shape).to(x.dtype)).clamp(*self.bounds)


def sum_of_log_probabilities(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch"]:
    """Return the sum over classes of log p, at most 0."""
    return logits.log_softmax(1).sum(1)
