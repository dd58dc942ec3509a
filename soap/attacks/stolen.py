"""Steal and attack in one call: the substitute of Papernot et al. (2017), for a model that is asked for labels alone.

The attacker has the very images to be attacked. It asks for their labels, grows the set as `Substitute` does until its
queries are spent, and attacks the copy; the model is never asked for a gradient.
"""

import math
from dataclasses import dataclass
from functools import partial

from soap import validate
from soap.attacks.apgd import APGD
from soap.attacks.attack import Attack, Model
from soap.attacks.substitute import Substitute
from soap.balls import BALLS
from soap.models import build
from soap.shapes import Tensor

SEEDS = 150
"""Images that the paper's attacker begins with (section 4.2)."""

AUGMENT = 1 / 3
"""Length of an augmentation's step as a share of the radius: the paper's 0.1 at 0.3."""


@dataclass(frozen=True, kw_only=True)
class StolenCopy(Attack):
    """Train a copy on at most `queries` labels of the model, then climb its cross-entropy by APGD.

    The copy is the paper's CNN for images [batch, channels, height, width], its fully connected network for anything
    else. One row alone teaches nothing, and comes back as it is.
    """

    eps: float
    norm: str = "linf"
    queries: int = 1000
    steps: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.choice("norm", self.norm, tuple(BALLS))
        validate.at_least("queries", self.queries, 2)
        validate.at_least("steps", self.steps, 1)
        validate.at_least("seed", self.seed, 0)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Ask, train, attack the copy."""
        seeds = min(SEEDS, self.queries, len(x))
        if seeds < 2:
            return x.clone()
        network = partial(
            build, "cnn" if x.ndim == 4 else "fcn", inputs=tuple(x.shape[1:]), classes=model(x[:1]).shape[1]
        )
        copying = Substitute(
            network=network,
            attack=APGD(eps=self.eps, norm=self.norm, steps=self.steps, seed=self.seed),
            seeds=seeds,
            rounds=int(math.log2(self.queries / seeds)),
            augment_step=AUGMENT * self.eps,
            seed=self.seed,
        )
        return copying.fit(model, x).perturb(model, x, y)
