"""Hedge defence (Wu et al. 2021): the input is attacked towards all classes at once.

The walk climbs the sum of the cross-entropies to every class. A network that was trained adversarially is smoother
around the true class than around the one an attack led to, so that a wrong answer is upset sooner than a right one; of
other networks nothing of the kind is promised.
"""

from torch import nn

from soap import validate
from soap._runtime.seeding import streams, uniform
from soap.descent import UNIT, Bounds
from soap.purifiers.sign_steps import Criterion, SignWalk
from soap.shapes import Float, Tensor
from soap.specs import Spec, call_text


class Hedge(SignWalk):
    """`purify(x)` raises the sum over classes c of the cross-entropy of `model` to c, inside a ball around `x`.

    eps, step_size, steps: the paper's for CIFAR-10. The walk begins at a random point of the ball, drawn from `seed`
    and the image's own values, so that an answer depends on no batch-mate; `path` begins there, too.
    """

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
        super().__init__(model, eps=eps, step_size=step_size, steps=steps, bounds=bounds)
        self.seed = seed

    def spec(self) -> Spec:
        """The settings, as result rows store them."""
        names = ("eps", "step_size", "steps", "seed")
        return Spec(name="Hedge", settings={name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        return call_text(self.spec())

    def criterion(self, x: Float[Tensor, "batch *shape"]) -> Criterion:
        """The sum over classes of log p: descending it climbs the sum of cross-entropies."""
        return all_classes

    def start(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """A random point of the ball, inside the bounds."""
        share = 2 * uniform(streams(x, self.seed), x[0].numel()) - 1
        return (x + self.eps * share.reshape(x.shape).to(x.dtype)).clamp(*self.bounds)


def all_classes(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch"]:
    """The sum over classes of log p, at most 0."""
    return logits.log_softmax(1).sum(1)
