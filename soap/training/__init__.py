"""Training of classifiers with an auxiliary task (`train`, `fit`) and of generative models (`train_generative`)."""

from soap.data.dataset import as_dataset
from soap.training.adversarial import AdversarialTraining
from soap.training.certified import CertifiedTraining
from soap.training.generative import GenerativeProgress, Objective, train_generative
from soap.training.joint import Progress, fit, train
from soap.training.loop import BaseProgress, Trained
from soap.training.schedule import GenerativeSchedule, Schedule
from soap.training.wgan import WganGp

__all__ = [
    "AdversarialTraining",
    "BaseProgress",
    "CertifiedTraining",
    "GenerativeProgress",
    "GenerativeSchedule",
    "Objective",
    "Progress",
    "Schedule",
    "Trained",
    "WganGp",
    "as_dataset",
    "fit",
    "train",
    "train_generative",
]
