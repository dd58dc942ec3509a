"""Auxiliary tasks and the joint model that carries one."""

from soap.auxiliary.consistency import Consistency, random_view, second_view
from soap.auxiliary.joint import JointModel, Purification
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
    "second_view",
]
