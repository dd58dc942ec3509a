"""Training of classifiers with an auxiliary task (`train`, `fit`) and of generative models (`train_generative`)."""

from soap.training.fitting import as_dataset, fit
from soap.training.generative import GenerativeProgress, Objective, train_generative
from soap.training.joint import Progress, train
from soap.training.loop import BaseProgress, Trained
from soap.training.schedule import GenerativeSchedule, Schedule
from soap.training.wgan import WganGp

__all__ = [
    "BaseProgress",
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
