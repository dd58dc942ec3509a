"""Attacks, one file a paper; every one is called as `attack(model, x, y)`."""

from soap.attacks.attack import Attack, Model, fooled
from soap.attacks.auxiliary_aware import AuxiliaryAwarePGD
from soap.attacks.carlini_wagner import CarliniWagner
from soap.attacks.deepfool import DeepFool
from soap.attacks.losses import cross_entropy, margin
from soap.attacks.minimal import MinimalL2, success
from soap.attacks.pgd import FGSM, PGD
from soap.attacks.substitute import Substitute, Transfer

__all__ = [
    "FGSM",
    "PGD",
    "Attack",
    "AuxiliaryAwarePGD",
    "CarliniWagner",
    "DeepFool",
    "MinimalL2",
    "Model",
    "Substitute",
    "Transfer",
    "cross_entropy",
    "fooled",
    "margin",
    "success",
]
