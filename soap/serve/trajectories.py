"""Predict, purify and attack a batch of images, and record the trajectory of each image.

An operation is a frozen dataclass: images with equal operations can share a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from soap import validate
from soap._runtime.isolation import isolated
from soap.attacks import FGSM, PGD, Attack, MinimalL2
from soap.attacks.losses import objective
from soap.auxiliary import JointModel
from soap.balls import BALLS
from soap.data.pictures import round_to_8bit
from soap.descent import iterates
from soap.purifiers import SOAP
from soap.purifiers.grid import max_paths
from soap.shapes import Float, Tensor

IMAGES_PER_PASS = 256
"""Images of one forward pass over the points of trajectories."""

NO_LABEL = -1
"""Label of an image whose class is not given."""

DEEPFOOL_GRADIENTS = 60
"""Approximate number of gradients per image of DeepFool: a few iterations, one gradient per class."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """The points x_0 ... x_T of one image, with the logits and the auxiliary loss at each point.

    losses: None for a model without an auxiliary task. eps: radius chosen by purification. label: the class that the
    caller gave, else the prediction at x_0.
    """

    points: Float[Tensor, "t *shape"]
    logits: Float[Tensor, "t classes"]
    losses: Float[Tensor, "t"] | None
    eps: float | None
    label: int

    @cached_property
    def probabilities(self) -> Float[Tensor, "t classes"]:
        """The probability of each class at each point."""
        return self.logits.softmax(1)


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Classify the images as they are."""

    name: ClassVar[str] = "predict"
    gradients: int = 1

    def points(self, model: JointModel, x: Tensor, y: Tensor) -> tuple[Tensor, None]:
        """The images themselves."""
        return x[None], None


@dataclass(frozen=True, kw_only=True)
class Purify:
    """Purify with SOAP; `eps` and `steps` are its settings."""

    name: ClassVar[str] = "purify"
    eps: float | str
    steps: int
    gradients: int

    @classmethod
    def of(cls, model: JointModel, eps: float | str = "min-aux", steps: int | None = None) -> "Purify":
        """The operation with the model's own settings for those not given; raises if it cannot be purified."""
        if isinstance(eps, str):  # "oracle" needs the label; "min-aux-batch" depends on the other images of the batch
            validate.choice("eps_pfy", eps, ("min-aux",))
        purifier = SOAP(model, eps, steps=steps)
        paths = max_paths(purifier.grid, step_size=purifier.step_size, steps=purifier.steps)
        return cls(eps=eps, steps=purifier.steps, gradients=paths * purifier.steps)

    def points(self, model: JointModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The iterates at the chosen radius, and the radius of each image."""
        return SOAP(model, self.eps, steps=self.steps).route(x)


@dataclass(frozen=True, kw_only=True)
class AttackClassifier:
    """Attack the bare classifier. The last point is rounded to 8 bits, so that a PNG holds it exactly."""

    name: ClassVar[str] = "attack"
    attack: Attack

    @property
    def gradients(self) -> int:
        """Gradients per image."""
        if isinstance(self.attack, PGD):
            return self.attack.steps
        return 1 if isinstance(self.attack, FGSM) else DEEPFOOL_GRADIENTS

    def points(self, model: JointModel, x: Tensor, y: Tensor) -> tuple[Tensor, None]:
        """Every iterate of FGSM and PGD; first and last point of other attacks."""
        with isolated(model), torch.no_grad():
            y = torch.where(y == NO_LABEL, model(x).argmax(1), y)
        if isinstance(self.attack, FGSM):
            points = pgd_points(PGD(eps=self.attack.eps, step_size=self.attack.eps or 1.0, steps=1), model, x, y)
        elif isinstance(self.attack, PGD):
            points = pgd_points(self.attack, model, x, y)
        else:
            points = [x, self.attack(model, x, y)]
        rounded = round_to_8bit(points[-1], x, away=isinstance(self.attack, MinimalL2))
        return torch.stack([*points[:-1], rounded]), None


Operation = Predict | Purify | AttackClassifier
"""`points(model, x, y)` returns the points [T + 1, batch, ...] and the radius of each image, if any; `y` holds
classes or NO_LABEL. `gradients` is the approximate number of gradients per image."""


def pgd_points(attack: PGD, model: JointModel, x: Tensor, y: Tensor) -> list[Tensor]:
    """The iterates x_0 ... x_T of a PGD attack that starts at x; the last equals `attack(model, x, y)`."""
    ball, loss = BALLS[attack.norm](attack.eps), objective(attack.loss, attack.targeted)
    with isolated(model):
        return iterates(
            lambda point: loss(model(point), y), x, ball=ball, step_size=attack.step_size, steps=attack.steps
        )


def run_operation(
    operation: Operation, model: JointModel, images: Sequence[Tensor], labels: Sequence[int | None]
) -> list[Trajectory]:
    """Run an operation on a batch of images. A label that is None is replaced by the model's prediction."""
    device = next(model.parameters()).device
    x = torch.stack(list(images)).to(device)
    y = torch.tensor([NO_LABEL if label is None else label for label in labels], device=device)
    points, eps = operation.points(model, x, y)
    logits, losses = _evaluate(model, points.flatten(0, 1))
    logits = logits.reshape(*points.shape[:2], -1)
    points = points.cpu()
    return [
        Trajectory(
            points=points[:, i],
            logits=logits[:, i],
            losses=None if losses is None else losses.reshape(points.shape[:2])[:, i],
            eps=None if eps is None else float(eps[i]),
            label=int(logits[0, i].argmax()) if label is None else label,
        )
        for i, label in enumerate(labels)
    ]


def _evaluate(model: JointModel, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits and auxiliary losses (None without an auxiliary task), on the CPU."""
    parts = torch.split(x, IMAGES_PER_PASS)
    with isolated(model), torch.no_grad():
        logits = torch.cat([model(part).cpu() for part in parts])
        if not model.purifiable:
            return logits, None
        return logits, torch.cat([model.auxiliary.loss(model, part).cpu() for part in parts])
