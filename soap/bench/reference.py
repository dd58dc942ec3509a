"""Plain reference implementations: the paper's algorithms and joint training, as usually written in PyTorch.

Purification and PGD run one radius and one step after another on whole batches, with `loss.backward()`, which also
computes gradients of the parameters. Training is an eager loop over batches. Our implementations are measured against
these.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from soap._runtime import devices, seeding
from soap.attacks import FGSM, PGD
from soap.auxiliary import JointModel
from soap.data import Dataset, random_crop, random_flip
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor
from soap.training import Schedule
from soap.training.joint_step import PerturbsImages

LOSS_TIE = 1e-5
"""Losses this close (relative) are equal; the smallest radius is chosen. Radii that never bind give the same point."""


def purify(
    model: JointModel, x: Float[Tensor, "batch *shape"], eps: float, *, gamma: float, T: int
) -> Float[Tensor, "batch *shape"]:
    """Algorithm 2: `sign_steps` down the auxiliary loss."""
    return sign_steps(lambda x_pfy: model.auxiliary.loss(model, x_pfy).sum(), x, eps=eps, step=-gamma, T=T)


def purify_min_aux(
    model: JointModel, x: Float[Tensor, "batch *shape"], grid: Sequence[float], *, gamma: float, T: int
) -> tuple[Float[Tensor, "batch *shape"], Float[Tensor, "batch"]]:
    """Algorithm 2 for each radius of the grid, then for each example the smallest radius with the least loss."""
    ends, losses = [], []
    for eps in sorted(grid):
        ends.append(purify(model, x, eps, gamma=gamma, T=T))
        with torch.no_grad():
            losses.append(model.auxiliary.loss(model, ends[-1]))
    model.zero_grad()
    table = torch.stack(losses)
    least = table.amin(0)
    choice = (table <= least + LOSS_TIE * least.abs()).byte().argmax(0)
    samples = torch.arange(len(x), device=x.device)
    return torch.stack(ends)[choice, samples], torch.tensor(sorted(grid), device=x.device, dtype=x.dtype)[choice]


def pgd(
    model: JointModel, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"], *, eps: float, gamma: float, T: int
) -> Float[Tensor, "batch *shape"]:
    """Algorithm 1 from delta = 0: `sign_steps` up the cross-entropy."""
    x_adv = sign_steps(lambda x_adv: F.cross_entropy(model(x_adv), y, reduction="sum"), x, eps=eps, step=gamma, T=T)
    model.zero_grad()
    return x_adv


def sign_steps(loss_of: Callable[[Tensor], Tensor], x: Tensor, *, eps: float, step: float, T: int) -> Tensor:
    """delta <- delta + step * sign(gradient), clipped to [-eps, eps] and x + delta to [0, 1]; T times from 0."""
    delta = torch.zeros_like(x)
    for _ in range(T):
        point = (x + delta).requires_grad_()
        loss_of(point).backward()  # type: ignore[no-untyped-call]
        delta = (delta + step * _gradient(point).sign()).clamp(-eps, eps)
        delta = (x + delta).clamp(0, 1) - x
    return x + delta


def _gradient(x: Tensor) -> Tensor:
    """The gradient that `backward` stored at `x`."""
    if x.grad is None:
        raise RuntimeError("backward() stored no gradient at the input")
    return x.grad


class PlainTraining:
    """Joint training (Eq. 2 of the paper) as an eager loop, one epoch per call.

    As in ours, the data are on the device and augmentation is batched there. It has no graphs and no fused optimiser,
    reads `loss.item()` in each step, and computes adversarial examples by `loss.backward()`. Random numbers depend on
    (seed, step) as in `soap.training`, so that the losses of both can be compared.
    """

    def __init__(
        self, model: JointModel, data: Dataset, schedule: Schedule, *, attack: PerturbsImages | None, precision: str
    ) -> None:
        self.model, self.data, self.schedule, self.attack, self.precision = model, data, schedule, attack, precision
        self.device = data.x.device
        self.batch_size = min(schedule.batch_size, len(data))
        self.steps_per_epoch = len(data) // self.batch_size
        self.generator = torch.Generator(self.device)
        self.step = 0
        self.optimiser = torch.optim.SGD(
            model.parameters(), lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay
        )

    def epoch(self) -> list[float]:
        """Train on each image once; the loss of each step."""
        number = self.step // self.steps_per_epoch
        order_generator = torch.Generator().manual_seed(seeding.seed_for(self.schedule.seed, 0, number))
        order = torch.randperm(len(self.data), generator=order_generator).to(self.device)
        self.model.train()
        return [
            self._train_step(order[place * self.batch_size : (place + 1) * self.batch_size])
            for place in range(self.steps_per_epoch)
        ]

    def _train_step(self, indices: Tensor) -> float:
        seed = seeding.seed_for(self.schedule.seed, 1, self.step)
        self.generator.manual_seed(seed)
        torch.manual_seed(seed)  # dropout uses the global random state, which the caller restores
        x, y = self.data.x[indices], self.data.y[indices]
        if "crop" in self.schedule.augment:
            x = random_crop(x, 4, self.generator)
        if "flip" in self.schedule.augment:
            x = random_flip(x, self.generator)
        if self.attack is not None:
            x = self._attacked(x, y)
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.rate((self.step + 1) / self.steps_per_epoch - 1e-9)
        with devices.autocast(self.device, self.precision):
            loss = joint_loss(self.model, x, y, self.generator)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def _attacked(self, x: Tensor, y: Tensor) -> Tensor:
        """PGD, or FGSM as its single step, on the network in evaluation mode."""
        attack = self.attack
        if isinstance(attack, FGSM):
            attack = PGD(eps=attack.eps, step_size=attack.eps, steps=1)
        if not isinstance(attack, PGD):
            raise InputError(f"the reference training cannot use {attack!r}; expected pgd or fgsm.")
        self.model.eval()
        x_adv = pgd(self.model, x, y, eps=attack.eps, gamma=attack.step_size, T=attack.steps)
        self.model.train()
        return x_adv


def joint_loss(model: JointModel, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """classification + alpha * auxiliary, or classification alone for a network without a task."""
    if not model.purifiable:
        return F.cross_entropy(model(x), y)
    losses = model.auxiliary.losses(model, x, y, generator)
    return losses.classification + model.auxiliary.alpha * losses.auxiliary
