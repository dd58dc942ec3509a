"""Joint training (Eq. 2 of the paper) as everyone writes it: an eager loop over batches, the loss read at each step.

The data lie on the device and augmentation is batched there, as in ours; what it lacks is everything else: no graphs,
no fused optimiser, `loss.item()` every step, and adversarial examples by `loss.backward()`. Random draws depend on
(seed, step) like those of `soap.training`, so that the losses of both can be compared.
"""

import torch
from torch.nn import functional as F

from soap._runtime import devices, seeding
from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import JointModel
from soap.bench import plain_walks
from soap.data import Dataset, random_crop, random_flip
from soap.errors import InputError
from soap.shapes import Tensor
from soap.training import Schedule


class PlainTraining:
    """An ordinary training run of `model`, an epoch at a time."""

    def __init__(
        self, model: JointModel, data: Dataset, schedule: Schedule, *, attack: Attack | None, precision: str
    ) -> None:
        self.model, self.data, self.schedule, self.attack, self.precision = model, data, schedule, attack, precision
        self.device = data.x.device
        self.batch = min(schedule.batch, len(data))
        self.steps_per_epoch = len(data) // self.batch
        self.generator = torch.Generator(self.device)
        self.step = 0
        self.optimiser = torch.optim.SGD(
            model.parameters(), lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay
        )

    def epoch(self) -> list[float]:
        """Train on every image once; the loss of every step."""
        number = self.step // self.steps_per_epoch
        order_generator = torch.Generator().manual_seed(seeding.seed_for(self.schedule.seed, 0, number))
        order = torch.randperm(len(self.data), generator=order_generator).to(self.device)
        self.model.train()
        return [
            self._train_step(order[place * self.batch : (place + 1) * self.batch])
            for place in range(self.steps_per_epoch)
        ]

    def _train_step(self, rows: Tensor) -> float:
        seed = seeding.seed_for(self.schedule.seed, 1, self.step)
        self.generator.manual_seed(seed)
        torch.manual_seed(seed)  # dropout draws from the global state; the caller restores it
        x, y = self.data.x[rows], self.data.y[rows]
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
        """PGD, or its single step FGSM, on the network in evaluation mode."""
        self.model.eval()
        match self.attack:
            case PGD():
                eps, gamma, T = self.attack.eps, self.attack.step_size, self.attack.steps
            case FGSM():
                eps, gamma, T = self.attack.eps, self.attack.eps, 1
            case _:
                raise InputError(f"adversarial training by {self.attack!r} has no plain path; want pgd or fgsm.")
        x_adv = plain_walks.pgd(self.model, x, y, eps=eps, gamma=gamma, T=T)
        self.model.train()
        return x_adv


def joint_loss(model: JointModel, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """classification + alpha * auxiliary, or classification alone for a network without a task."""
    if not model.purifiable:
        return F.cross_entropy(model(x), y)
    losses = model.auxiliary.losses(model, x, y, generator)
    return losses.classification + model.auxiliary.alpha * losses.auxiliary
