"""What can be done with a batch of images, and the way every image went.

An operation is a frozen dataclass: requests whose operations are equal share a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from soap import validate
from soap._runtime.isolation import isolated
from soap.attacks import FGSM, PGD, Attack
from soap.attacks.losses import LOSSES
from soap.auxiliary import JointModel
from soap.balls import BALLS
from soap.descent import iterates
from soap.purifiers import SOAP
from soap.purifiers.grid import max_paths
from soap.serve.pictures import on_levels
from soap.shapes import Float, Tensor

AT_ONCE = 256
"""Points that are looked at together."""

UNKNOWN = -1
"""The label of an image whose class the client did not tell."""

DEEPFOOL = 60
"""Gradients that DeepFool takes for an image, or so: a few rounds, one for each class."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """One image's way: the points x_0 ... x_T, and at each the class probabilities and the auxiliary loss.

    losses: None for a model without an auxiliary task. eps: the radius that a purification chose. label: the true class
    as the client told it, else what the model sees in x_0.
    """

    points: Float[Tensor, "t *shape"]
    probabilities: Float[Tensor, "t classes"]
    losses: Float[Tensor, "t"] | None
    eps: float | None
    label: int


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Look at the images as they are."""

    gradients: int = 1

    def trail(self, model: JointModel, x: Tensor, y: Tensor) -> tuple[Tensor, None]:
        """The images alone."""
        return x[None], None


@dataclass(frozen=True, kw_only=True)
class Purify:
    """Walk down the auxiliary loss; `eps` and `steps` as a `SOAP` takes them."""

    eps: float | str
    steps: int
    gradients: int

    @classmethod
    def of(cls, model: JointModel, eps: float | str = "min-aux", steps: int | None = None) -> "Purify":
        """The model's own settings for what is not given; an error where it cannot be purified."""
        if isinstance(eps, str):
            validate.choice("eps_pfy", eps, ("min-aux",))  # "oracle" needs the label, "min-aux-batch" sees batch-mates
        purifier = SOAP(model, eps, steps=steps)
        paths = max_paths(purifier.grid, step_size=purifier.step_size, steps=purifier.steps)
        return cls(eps=eps, steps=purifier.steps, gradients=paths * purifier.steps)

    def trail(self, model: JointModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The path at the chosen radius."""
        return SOAP(model, self.eps, steps=self.steps).route(x)


@dataclass(frozen=True, kw_only=True)
class Mislead:
    """Attack the bare classifier. The last point is what an 8-bit picture can hold.

    It is rounded towards the input where that keeps it in the attack's Linf ball; a minimal attack of L2 norm would be
    undone by this, and is rounded to the nearest level.
    """

    attack: Attack

    @property
    def gradients(self) -> int:
        """Its steps."""
        return self.attack.steps if isinstance(self.attack, PGD) else 1 if isinstance(self.attack, FGSM) else DEEPFOOL

    def trail(self, model: JointModel, x: Tensor, y: Tensor) -> tuple[Tensor, None]:
        """Every step of FGSM and PGD; of other attacks the two ends."""
        y = torch.where(y == UNKNOWN, _seen(model, x, losses=False)[0].argmax(1).to(y.device), y)
        if isinstance(self.attack, FGSM):
            points = climbed(PGD(eps=self.attack.eps, step_size=self.attack.eps or 1.0, steps=1), model, x, y)
        elif isinstance(self.attack, PGD):
            points = climbed(self.attack, model, x, y)
        else:
            return torch.stack([x, (self.attack(model, x, y) * 255).round() / 255]), None
        return torch.stack([*points[:-1], on_levels(points[-1], x)]), None


Operation = Predict | Purify | Mislead
"""`trail(model, x, y)` gives the points [T + 1, batch, ...] of every row, and every row's radius where one is chosen;
`y` holds UNKNOWN or a class. `gradients` says how many an image takes, about."""


def climbed(attack: PGD, model: JointModel, x: Tensor, y: Tensor) -> list[Tensor]:
    """The points x_0 ... x_T of a PGD attack that starts at x; the last is `attack(model, x, y)`."""
    ball, loss = BALLS[attack.norm](attack.eps), LOSSES[attack.loss]
    with isolated(model):
        return iterates(
            lambda point: loss(model(point), y), x, ball=ball, step_size=attack.step_size, steps=attack.steps
        )


def perform(
    operation: Operation, model: JointModel, images: Sequence[Tensor], labels: Sequence[int | None]
) -> list[Walk]:
    """The operation on images of many requests; a label that is not given is the model's own answer."""
    device = next(model.parameters()).device
    x = torch.stack(list(images)).to(device)
    y = torch.tensor([UNKNOWN if label is None else label for label in labels], device=device)
    trail, eps = operation.trail(model, x, y)
    flat, costs = _seen(model, trail.flatten(0, 1), losses=model.purifiable)
    probabilities = flat.reshape(*trail.shape[:2], -1)
    losses = None if costs is None else costs.reshape(trail.shape[:2])
    points = trail.cpu()
    return [
        Walk(
            points=points[:, row],
            probabilities=probabilities[:, row],
            losses=None if losses is None else losses[:, row],
            eps=None if eps is None else float(eps[row]),
            label=int(probabilities[0, row].argmax()) if label is None else label,
        )
        for row, label in enumerate(labels)
    ]


def _seen(model: JointModel, x: Tensor, *, losses: bool) -> tuple[Tensor, Tensor | None]:
    """Class probabilities and auxiliary losses, on the host."""
    found, costs = [], []
    with isolated(model), torch.no_grad():
        for part in torch.split(x, AT_ONCE):
            found.append(model(part).softmax(1).cpu())
            if losses:
                costs.append(model.auxiliary.loss(model, part).cpu())
    return torch.cat(found), torch.cat(costs) if losses else None
