"""The paper's attacks on each data set, by the names its tables use (section 4.1)."""

from dataclasses import dataclass

from soap.attacks import FGSM, PGD, Attack, CarliniWagner, DeepFool, Model
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True)
class Clean(Attack):
    """No attack: returns the images unchanged."""

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """A copy of the images."""
        return x.clone()


_DIGITS: dict[str, Attack] = {
    "none": Clean(),
    "fgsm": FGSM(eps=0.3),
    "pgd": PGD(eps=0.3, step_size=0.01, steps=40),
    "cw": CarliniWagner(radius=4.0),
    "df": DeepFool(radius=4.0),
}

_COLOUR: dict[str, Attack] = {
    "none": Clean(),
    "fgsm": FGSM(eps=8 / 255),
    "pgd": PGD(eps=8 / 255, step_size=2 / 255, steps=20),
    "cw": CarliniWagner(radius=2.0),
    "df": DeepFool(radius=2.0),
}

PAPER: dict[str, dict[str, Attack]] = {
    "mnist": _DIGITS,
    "mnist-mini": _DIGITS,
    "cifar10": _COLOUR,
    "cifar100": _COLOUR,
}
"""Attacks by data set, then by the name in the paper's tables."""
