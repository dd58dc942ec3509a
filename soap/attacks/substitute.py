"""The black-box attack of Papernot et al. (2017): train a substitute on the target's labels and attack it.

The attacker sees only the target's labels. It trains a substitute on a few images labelled by the target, extends that
set along the substitute's own Jacobian, and attacks the substitute. Many of these adversarial examples transfer to the
target.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from soap import validate
from soap._runtime.isolation import isolated, preserved_random_state
from soap.attacks.apgd import APGD
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import cross_entropy
from soap.attacks.pgd import FGSM
from soap.auxiliary import JointModel
from soap.balls import BALLS
from soap.descent import UNIT, Bounds, loss_and_gradient
from soap.errors import InputError, unknown
from soap.models import ARCHITECTURES, Network, build
from soap.shapes import Float, Int, Tensor

Labels = Callable[[Tensor], Tensor]
"""x [batch, ...] -> the predicted classes [batch]: all that a black box returns."""

PAPER_SEEDS = 150
"""Number of images that the paper's attacker starts with (section 4.2)."""

PAPER_AUGMENT_SHARE = 1 / 3
"""Length of an augmentation step as a share of eps: the paper's 0.1 at 0.3."""


@dataclass(frozen=True, kw_only=True)
class Substitute:
    """Settings of the substitute's training; `fit(target, x)` returns the attack.

    network: name of an architecture (built for ten classes) or a callable that builds a network.
    seeds: number of images that the attacker has, the first of `x`; evaluate on the others.
    rounds, augment_step: every round doubles the set by x +- augment_step * sign(dF_y / dx), with alternating sign. The
    final set has seeds * 2^rounds images, which is also the number of queries.
    epochs, lr, batch_size: Adam trains a new substitute in each round.
    attack: the attack on the substitute.
    """

    network: str | Callable[[], Network] = "cnn"
    attack: Attack = field(default_factory=lambda: FGSM(eps=0.3))
    seeds: int = 150
    rounds: int = 6
    augment_step: float = 0.1
    epochs: int = 10
    lr: float = 1e-3
    batch_size: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.network, str) and self.network not in ARCHITECTURES:
            raise unknown("architecture", self.network, ARCHITECTURES)
        validate.at_least("seeds", self.seeds, 2)
        validate.at_least("rounds", self.rounds, 0)
        validate.non_negative("augment_step", self.augment_step)
        validate.at_least("epochs", self.epochs, 1)
        validate.positive("lr", self.lr)
        validate.at_least("batch_size", self.batch_size, 2)
        validate.at_least("seed", self.seed, 0)

    def fit(self, target: Model, x: Float[Tensor, "n *shape"]) -> "Transfer":
        """Query `target` (also a Defence) with the first `seeds` images of `x`, and train the substitute."""
        validate.inputs(x, target, self.attack.bounds)
        if len(x) < self.seeds:
            raise InputError(f"got {len(x)} images to start from, expected at least seeds={self.seeds}.")
        with isolated(target), torch.no_grad():
            validate.logits(target(x[:8]), len(x[:8]))
            substitute = self.train(lambda queries: target(queries).argmax(1), x[: self.seeds])
        return Transfer(substitute=substitute, settings=self, bounds=self.attack.bounds)

    def train(self, target_labels: Labels, x_seed: Float[Tensor, "n *shape"]) -> nn.Module:
        """Return a network that imitates `target_labels`, in evaluation mode and without gradients."""
        validate.inputs(x_seed, bounds=self.attack.bounds)
        if len(x_seed) < 2:
            raise InputError("got 1 image to start from, expected at least 2: batch norm cannot train on one.")
        with torch.inference_mode(False), torch.no_grad():
            x = x_seed.detach().clone()  # autograd cannot record a tensor made in inference mode
            y = self._query(target_labels, x)
            substitute = self._train_round(x, y, 0)
            for round_ in range(self.rounds):
                step = self.augment_step if round_ % 2 == 0 else -self.augment_step
                parts = zip(self._parts(x), self._parts(y), strict=True)
                new = torch.cat([augment(substitute, *part, step, self.attack.bounds) for part in parts])
                x, y = torch.cat([x, new]), torch.cat([y, self._query(target_labels, new)])
                substitute = self._train_round(x, y, round_ + 1)
        return substitute

    def _query(self, target_labels: Labels, x: Tensor) -> Tensor:
        y = torch.cat([target_labels(part) for part in self._parts(x)])
        validate.labels(y, x)
        return y.long()

    def _parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.tensor_split(math.ceil(len(rows) / self.batch_size))

    def _train_round(self, x: Tensor, y: Tensor, round_: int) -> nn.Module:
        """Train a new substitute on the present set."""
        with preserved_random_state(), torch.enable_grad():
            model = self._new_network(x, self.seed + round_)
            if int(y.max()) >= model.classes:
                raise InputError(
                    f"the target predicts class {int(y.max())} but the substitute has {model.classes} classes; give "
                    "one with enough classes, e.g. network=lambda: soap.models.build('cnn', classes=100)."
                )
            order = torch.Generator().manual_seed(self.seed + round_)
            optimiser = torch.optim.Adam(model.parameters(), self.lr)
            for _ in range(self.epochs):
                shuffled = torch.randperm(len(x), generator=order).to(x.device)
                # tensor_split: no part is smaller than a batch, and batch norm needs at least two samples.
                for rows in shuffled.tensor_split(max(1, len(x) // self.batch_size)):
                    optimiser.zero_grad()
                    F.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
        return model.eval().requires_grad_(False)

    def _new_network(self, x: Tensor, seed: int) -> JointModel:
        """Return a network with weights drawn from `seed`; its dropout continues the same random stream."""
        torch.default_generator.manual_seed(seed)
        if x.is_cuda:
            torch.cuda.manual_seed_all(seed)
        built = build(self.network, inputs=tuple(x.shape[1:])) if isinstance(self.network, str) else self.network()
        return JointModel(built, name="substitute").to(x.device, x.dtype)


@dataclass(frozen=True, kw_only=True, repr=False)
class Transfer(Attack):
    """Attack a trained substitute instead of the model, whose gradient is never used."""

    settings: Substitute
    substitute: nn.Module = field(repr=False)
    bounds: Bounds = UNIT

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Run `settings.attack` on the substitute."""
        return self.settings.attack(self.substitute, x, y)


@dataclass(frozen=True, kw_only=True, repr=False)
class StolenCopy(Attack):
    """Train a substitute on at most `queries` labels of the model, then attack it by APGD on its cross-entropy.

    The attacker starts from the images to be attacked. The substitute is the paper's CNN for images [batch, channels,
    height, width], and its fully connected network for other inputs. A single sample is returned unchanged, because
    one sample cannot train a substitute.
    """

    eps: float
    norm: str = "linf"
    queries: int = 1000
    steps: int = 100
    seed: int = 0
    bounds: Bounds = UNIT

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.choice("norm", self.norm, tuple(BALLS))
        validate.at_least("queries", self.queries, 2)
        validate.at_least("steps", self.steps, 1)
        validate.at_least("seed", self.seed, 0)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Query the model, train the substitute, attack it."""
        seeds = min(PAPER_SEEDS, self.queries, len(x))
        if seeds < 2:
            return x.clone()
        network = partial(
            build, "cnn" if x.ndim == 4 else "fcn", inputs=tuple(x.shape[1:]), classes=model(x[:1]).shape[1]
        )
        settings = Substitute(
            network=network,
            attack=APGD(eps=self.eps, norm=self.norm, steps=self.steps, seed=self.seed, bounds=self.bounds),
            seeds=seeds,
            rounds=int(math.log2(self.queries / seeds)),
            augment_step=PAPER_AUGMENT_SHARE * self.eps,
            seed=self.seed,
        )
        return settings.fit(model, x).perturb(model, x, y)


def augment(
    substitute: nn.Module, x: Float[Tensor, "n *shape"], y: Int[Tensor, "n"], step: float, bounds: Bounds = UNIT
) -> Float[Tensor, "n *shape"]:
    """Return x + step * sign(dF_y / dx), clipped to the bounds; F is the substitute's softmax."""
    # The logarithm does not change the sign, and its gradient does not vanish where F_y is close to 1.
    _, gradient = loss_and_gradient(lambda point: -cross_entropy(substitute(point), y), x)
    return (x + step * gradient.sign()).clamp(*bounds)
