"""The anti-adversary layer (Alfarra et al. 2022): increase the classifier's confidence in its own prediction.

An attack lowers the confidence in the true class. The layer raises the confidence in the predicted class by K sign
steps that lower its cross-entropy. If an attack has already changed the prediction, the layer confirms the wrong class.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from soap.descent import UNIT, Bounds
from soap.purifiers.sign_steps import LogitLoss, SignStepPurifier
from soap.shapes import Float, Tensor


class AntiAdversary(SignStepPurifier):
    """`AntiAdversary(model)(x)` lowers the cross-entropy of `model` to its prediction at `x`, which does not change.

    step_size, steps: alpha and K; the defaults are the paper's 0.15 and 2, for inputs in [0, 1]. The only ball is what
    the steps can reach, `eps` = K * alpha. Images are clipped to `bounds`; the authors' layer does not clip.
    """

    setting_names = ("step_size", "steps")

    def __init__(self, model: nn.Module, *, step_size: float = 0.15, steps: int = 2, bounds: Bounds = UNIT) -> None:
        super().__init__(model, eps=step_size * steps, step_size=step_size, steps=steps, bounds=bounds)

    def criterion(self, x: Float[Tensor, "batch *shape"]) -> LogitLoss:
        """Return -log p of the class that is predicted at `x`."""
        with torch.no_grad():
            predicted = self.model(x).argmax(1)
        return partial(F.cross_entropy, target=predicted, reduction="none")
