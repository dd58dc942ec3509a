"""Attacks, one file per method; each is called as `attack(model, x, y)` and returns adversarial examples."""

from soap.attacks.apgd import APGD, Trace
from soap.attacks.attack import Attack, Model, fooled
from soap.attacks.autoattack import AutoAttack
from soap.attacks.auxiliary_aware import AuxiliaryAwarePGD
from soap.attacks.bit_flips import BitFlips
from soap.attacks.carlini_wagner import CarliniWagner
from soap.attacks.deepfool import DeepFool
from soap.attacks.detector_aware import LagrangianPGD, OrthogonalPGD, SelectivePGD
from soap.attacks.hop_skip_jump import HopSkipJump
from soap.attacks.losses import LossFunction, cross_entropy, dlr, margin, targeted_dlr, targeted_margin
from soap.attacks.min_norm import MinimalL2, success
from soap.attacks.noise import Noise
from soap.attacks.pgd import FGSM, PGD, DecayingPGD
from soap.attacks.purified_ends import PurifiedEnds
from soap.attacks.ray_search import RayS
from soap.attacks.square import Square
from soap.attacks.substitute import StolenCopy, Substitute, Transfer

__all__ = [
    "APGD",
    "FGSM",
    "PGD",
    "Attack",
    "AutoAttack",
    "AuxiliaryAwarePGD",
    "BitFlips",
    "CarliniWagner",
    "DecayingPGD",
    "DeepFool",
    "HopSkipJump",
    "LagrangianPGD",
    "LossFunction",
    "MinimalL2",
    "Model",
    "Noise",
    "OrthogonalPGD",
    "PurifiedEnds",
    "RayS",
    "SelectivePGD",
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
