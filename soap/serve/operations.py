"""Served models, the operations on a batch of images (predict, purify, attack), and the trajectory of each image.

An operation is a frozen dataclass: requests with equal operations share a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from soap import validate, zoo
from soap._runtime.isolation import isolated
from soap.attacks import FGSM, PGD, Attack
from soap.attacks.losses import LOSSES
from soap.auxiliary import JointModel
from soap.balls import BALLS
from soap.data.pictures import round_to_8bit
from soap.descent import iterates
from soap.evaluation import PAPER
from soap.purifiers import SOAP
from soap.purifiers.grid import max_paths
from soap.recipes import Recipe
from soap.recipes.attacks import attacks_by_name, paper_data_set
from soap.recipes.recipe import class_names
from soap.shapes import Float, Tensor

OFFERED_ATTACKS = ("fgsm", "pgd", "df")
"""The paper's attacks that finish within a request's deadline; Carlini and Wagner's takes longer."""

IMAGES_PER_PASS = 256
"""Images of one forward pass over the points of trajectories."""

NO_LABEL = -1
"""Label of an image whose class the client did not give."""

DEEPFOOL_GRADIENTS = 60
"""Approximate number of gradients per image of DeepFool: a few iterations, one gradient per class."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A loaded model, the names of its classes, and the paper's attacks for its data set."""

    model: JointModel
    recipe: Recipe
    classes: tuple[str, ...]
    attacks: Mapping[str, Attack]

    @property
    def name(self) -> str:
        """Name of the model in requests."""
        return self.model.name

    def attack(self, name: str, *, eps: float | None = None, steps: int | None = None) -> Attack:
        """An attack by name, with the paper's settings for those not given."""
        given = {key: value for key, value in {"eps": eps, "steps": steps}.items() if value is not None}
        return attacks_by_name(self.attacks, [name], settings=given)[name]


def load_served_model(name: str, *, device: str | torch.device) -> ServedModel:
    """Load a bundled model by name, or a model from the path of a .safetensors file."""
    model, recipe = zoo.load(name, device=device), zoo.recipe(name)
    model.requires_grad_(False)  # once here, instead of in every call
    paper = PAPER[paper_data_set(recipe.data, recipe, model)]
    attacks = {attack: paper[attack] for attack in OFFERED_ATTACKS}
    return ServedModel(model=model, recipe=recipe, classes=tuple(class_names(recipe, model.classes)), attacks=attacks)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """The points x_0 ... x_T of one image, with class probabilities and auxiliary loss at each point.

    losses: None for a model without an auxiliary task. eps: radius chosen by purification. label: the class that the
    client gave, else the prediction at x_0.
    """

    points: Float[Tensor, "t *shape"]
    probabilities: Float[Tensor, "t classes"]
    losses: Float[Tensor, "t"] | None
    eps: float | None
    label: int


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
    """Attack the bare classifier. The last point is rounded to 8 bits, so that a PNG holds it exactly.

    It is rounded towards the input, which keeps it in the Linf ball of FGSM and PGD. DeepFool's small L2 perturbation
    would be lost that way, so its result is rounded to the nearest level.
    """

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
            return torch.stack([x, (self.attack(model, x, y) * 255).round() / 255]), None
        return torch.stack([*points[:-1], round_to_8bit(points[-1], x)]), None


Operation = Predict | Purify | AttackClassifier
"""`points(model, x, y)` returns the points [T + 1, batch, ...] and the radius of each image, if any; `y` holds
classes or NO_LABEL. `gradients` is the approximate number of gradients per image."""


def pgd_points(attack: PGD, model: JointModel, x: Tensor, y: Tensor) -> list[Tensor]:
    """The iterates x_0 ... x_T of a PGD attack that starts at x; the last equals `attack(model, x, y)`."""
    ball, loss = BALLS[attack.norm](attack.eps), LOSSES[attack.loss]
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
    probabilities, losses = _evaluate(model, points.flatten(0, 1))
    probabilities = probabilities.reshape(*points.shape[:2], -1)
    points = points.cpu()
    return [
        Trajectory(
            points=points[:, i],
            probabilities=probabilities[:, i],
            losses=None if losses is None else losses.reshape(points.shape[:2])[:, i],
            eps=None if eps is None else float(eps[i]),
            label=int(probabilities[0, i].argmax()) if label is None else label,
        )
        for i, label in enumerate(labels)
    ]


def _evaluate(model: JointModel, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Class probabilities and auxiliary losses (None without an auxiliary task), on the CPU."""
    parts = torch.split(x, IMAGES_PER_PASS)
    with isolated(model), torch.no_grad():
        probabilities = torch.cat([model(part).softmax(1).cpu() for part in parts])
        if not model.purifiable:
            return probabilities, None
        return probabilities, torch.cat([model.auxiliary.loss(model, part).cpu() for part in parts])
