"""The anti-adversary layer (Alfarra et al. 2022): the classifier is shown an image of which it is surer.

An attack lowers the confidence in the true class; the layer raises that in the class predicted, by K sign steps that
lower the cross-entropy to it. On a network that the attack has fooled already, it makes the wrong class the surer one.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from soap.descent import UNIT, Bounds
from soap.purifiers.sign_steps import Criterion, SignWalk
from soap.shapes import Float, Tensor
from soap.specs import Spec, call_text


class AntiAdversary(SignWalk):
    """`purify(x)` lowers the cross-entropy of `model` to its own prediction at `x`, which stays what it was.

    step_size, steps: alpha and K, the paper's 0.15 and 2, in units of [0, 1]. There is no ball but what the steps can
    reach, `eps` = K * alpha. Images stay in `bounds`; the authors' layer lets them leave it.
    """

    def __init__(self, model: nn.Module, *, step_size: float = 0.15, steps: int = 2, bounds: Bounds = UNIT) -> None:
        super().__init__(model, eps=step_size * steps, step_size=step_size, steps=steps, bounds=bounds)

    def spec(self) -> Spec:
        """The settings, as result rows store them."""
        return Spec(name="AntiAdversary", settings={"step_size": self.step_size, "steps": self.steps})

    def __repr__(self) -> str:
        return call_text(self.spec())

    def criterion(self, x: Float[Tensor, "batch *shape"]) -> Criterion:
        """-log p of the class that is predicted at `x`."""
        with torch.no_grad():
            predicted = self.model(x).argmax(1)
        return partial(F.cross_entropy, target=predicted, reduction="none")
