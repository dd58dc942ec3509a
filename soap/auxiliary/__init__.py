"""Auxiliary tasks, the joint model that carries one, and how any classifier becomes such a model."""

from soap.auxiliary.adopting import wrap
from soap.auxiliary.consistency import Consistency, random_view, second_view
from soap.auxiliary.joint import JointModel, Purification
from soap.auxiliary.keeping import restore, save
from soap.auxiliary.reconstruction import Reconstruction
from soap.auxiliary.rotation import Rotation, all_turns
from soap.auxiliary.task import AuxiliaryTask, JointLosses, accuracy

__all__ = [
    "AuxiliaryTask",
    "Consistency",
    "JointLosses",
    "JointModel",
    "Purification",
    "Reconstruction",
    "Rotation",
    "accuracy",
    "all_turns",
    "random_view",
    "restore",
    "save",
    "second_view",
    "wrap",
]
