"""Auxiliary tasks, the joint model of classifier and task, and `wrap`, which adds a task to any classifier."""

from soap.auxiliary.binarity import Binarity
from soap.auxiliary.consistency import Consistency, random_view, second_view
from soap.auxiliary.joint import AuxiliaryTask, JointLosses, JointModel, Purification, accuracy
from soap.auxiliary.reconstruction import Reconstruction
from soap.auxiliary.rotation import Rotation, all_turns
from soap.auxiliary.serialization import restore, save
from soap.auxiliary.wrapping import wrap

__all__ = [
    "AuxiliaryTask",
    "Binarity",
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
