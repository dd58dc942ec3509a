"""Joint training of classifier and auxiliary task."""

from soap.training.loop import Progress, Trained, train
from soap.training.schedule import Schedule

__all__ = ["Progress", "Schedule", "Trained", "train"]
