"""Attacks, one file a paper; every one is called as `attack(model, x, y)`."""

from soap.attacks.apgd import APGD, Trace
from soap.attacks.attack import Attack, Model, fooled
from soap.attacks.autoattack import AutoAttack
from soap.attacks.auxiliary_aware import AuxiliaryAwarePGD
from soap.attacks.carlini_wagner import CarliniWagner
from soap.attacks.deepfool import DeepFool
from soap.attacks.losses import cross_entropy, dlr, margin, targeted_dlr, targeted_margin
from soap.attacks.minimal import MinimalL2, success
from soap.attacks.noise import Noise
from soap.attacks.pgd import FGSM, PGD
from soap.attacks.square import Square
from soap.attacks.stolen import StolenCopy
from soap.attacks.substitute import Substitute, Transfer

__all__ = [
    "APGD",
    "FGSM",
    "PGD",
    "Attack",
    "AutoAttack",
    "AuxiliaryAwarePGD",
    "CarliniWagner",
    "DeepFool",
    "MinimalL2",
    "Model",
    "Noise",
    "Square",
    "StolenCopy",
    "Substitute",
    "Trace",
    "Transfer",
    "cross_entropy",
    "dlr",
    "fooled",
    "margin",
    "success",
    "targeted_dlr",
    "targeted_margin",
]
