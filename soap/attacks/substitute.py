"""The black-box attack of Papernot et al. (2017): steal the decisions, attack the copy.

The attacker sees the target's labels and nothing else. It trains a substitute on a few images labelled by the
target, grows that set along the substitute's own Jacobian, and hopes that what fools the substitute fools the
target too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from soap import validate
from soap._runtime.isolation import isolated, preserved_random_state
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import cross_entropy
from soap.attacks.pgd import FGSM
from soap.auxiliary import JointModel
from soap.descent import loss_and_gradient
from soap.errors import InputError, unknown
from soap.models import ARCHITECTURES, Network, build
from soap.shapes import Float, Int, Tensor

Labels = Callable[[Tensor], Tensor]
"""x [batch, ...] -> the class the target decides on, [batch]: all that a black box gives away."""


@dataclass(frozen=True, kw_only=True)
class Substitute:
    """How to train the copy; `fit(target, x)` gives the attack.

    network: an architecture's name (built for ten classes) or a callable that builds one.
    seeds: so many images are known to the attacker, the first of `x`; evaluate on the others.
    rounds, augment_step: every round doubles the set by x +- augment_step * sign(dF_y / dx), the sign
    alternating; at the end it holds seeds * 2^rounds images, which is also the number of queries.
    epochs, lr, batch: the substitute is trained anew each round, with Adam.
    attack: what is used against the substitute.
    """

    network: str | Callable[[], Network] = "cnn"
    attack: Attack = field(default_factory=lambda: FGSM(eps=0.3))
    seeds: int = 150
    rounds: int = 6
    augment_step: float = 0.1
    epochs: int = 10
    lr: float = 1e-3
    batch: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.network, str) and self.network not in ARCHITECTURES:
            raise unknown("architecture", self.network, ARCHITECTURES)
        validate.at_least("seeds", self.seeds, 2)
        validate.at_least("rounds", self.rounds, 0)
        validate.non_negative("augment_step", self.augment_step)
        validate.at_least("epochs", self.epochs, 1)
        validate.positive("lr", self.lr)
        validate.at_least("batch", self.batch, 2)
        validate.at_least("seed", self.seed, 0)

    def fit(self, target: Model, x: Float[Tensor, "n *shape"]) -> "Transfer":
        """Query `target` (a defended model, too) from the first `seeds` rows of `x`, and train the substitute."""
        validate.inputs(x, target)
        if len(x) < self.seeds:
            raise InputError(f"got {len(x)} images to start from, want at least seeds={self.seeds}.")
        with isolated(target), torch.no_grad():
            validate.logits(target(x[:8]), len(x[:8]))
            substitute = self.train(lambda queries: target(queries).argmax(1), x[: self.seeds])
        return Transfer(substitute=substitute, settings=self)

    def train(self, target_labels: Labels, x_seed: Float[Tensor, "n *shape"]) -> nn.Module:
        """A network that imitates `target_labels`, in evaluation mode and without gradients."""
        validate.inputs(x_seed)
        if len(x_seed) < 2:
            raise InputError("got 1 image to start from, want at least 2: batch norm cannot learn from one.")
        with torch.inference_mode(False), torch.no_grad():
            x = x_seed.detach().clone()  # autograd cannot record a tensor made under inference_mode
            y = self._query(target_labels, x)
            substitute = self._learn(x, y, 0)
            for round_ in range(self.rounds):
                step = self.augment_step if round_ % 2 == 0 else -self.augment_step
                parts = zip(self._parts(x), self._parts(y), strict=True)
                new = torch.cat([augment(substitute, *part, step) for part in parts])
                x, y = torch.cat([x, new]), torch.cat([y, self._query(target_labels, new)])
                substitute = self._learn(x, y, round_ + 1)
        return substitute

    def _query(self, target_labels: Labels, x: Tensor) -> Tensor:
        y = torch.cat([target_labels(part) for part in self._parts(x)])
        validate.labels(y, x)
        return y.long()

    def _parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.tensor_split(math.ceil(len(rows) / self.batch))

    def _learn(self, x: Tensor, y: Tensor, round_: int) -> nn.Module:
        """A fresh substitute trained on the set as it stands."""
        with preserved_random_state(), torch.enable_grad():
            model = self._fresh(x, self.seed + round_)
            if int(y.max()) >= model.classes:
                raise InputError(
                    f"the target answers class {int(y.max())} but the substitute has {model.classes} classes; give "
                    "one with enough, e.g. network=lambda: soap.models.build('cnn', classes=100)."
                )
            order = torch.Generator().manual_seed(self.seed + round_)
            optimiser = torch.optim.Adam(model.parameters(), self.lr)
            for _ in range(self.epochs):
                shuffled = torch.randperm(len(x), generator=order).to(x.device)
                # tensor_split: no part is smaller than a batch, and batch norm needs two rows at least.
                for rows in shuffled.tensor_split(max(1, len(x) // self.batch)):
                    optimiser.zero_grad()
                    F.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
        return model.eval().requires_grad_(False)

    def _fresh(self, x: Tensor, seed: int) -> JointModel:
        """A substitute with weights drawn from `seed`, which its dropout goes on drawing from."""
        torch.default_generator.manual_seed(seed)
        if x.is_cuda:
            torch.cuda.manual_seed_all(seed)
        built = build(self.network, inputs=tuple(x.shape[1:])) if isinstance(self.network, str) else self.network()
        return JointModel(built, name="substitute").to(x.device, x.dtype)


@dataclass(frozen=True, kw_only=True)
class Transfer(Attack):
    """Attack a trained substitute instead of the model, which is never asked for a gradient."""

    settings: Substitute
    substitute: nn.Module = field(repr=False)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """`settings.attack` on the substitute."""
        return self.settings.attack(self.substitute, x, y)


def augment(
    substitute: nn.Module, x: Float[Tensor, "n *shape"], y: Int[Tensor, "n"], step: float
) -> Float[Tensor, "n *shape"]:
    """x + step * sign(dF_y / dx), clipped to [0, 1]; F is the substitute's softmax."""
    # The logarithm changes no sign, and its gradient does not vanish where F_y is close to 1.
    _, gradient = loss_and_gradient(lambda point: -cross_entropy(substitute(point), y), x)
    return (x + step * gradient.sign()).clamp(0, 1)
