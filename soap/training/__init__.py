"""Training: of classifier and auxiliary task together, and of label-free models."""

from soap.training.fitting import as_dataset, fit
from soap.training.generative import GenerativeProgress, GenerativeSchedule, Objective, train_generative
from soap.training.loop import Progress, Trained, train
from soap.training.run import Standing
from soap.training.schedule import Schedule
from soap.training.wgan import WganGp

__all__ = [
    "GenerativeProgress",
    "GenerativeSchedule",
    "Objective",
    "Progress",
    "Schedule",
    "Standing",
    "Trained",
    "WganGp",
    "as_dataset",
    "fit",
    "train",
    "train_generative",
]
