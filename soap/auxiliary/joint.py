"""The joint model: encoder f, classifier g and auxiliary task h over one representation (Figure 1)."""

from dataclasses import dataclass

from soap.auxiliary.task import AuxiliaryTask, Classifies
from soap.errors import InputError
from soap.models import Network
from soap.specs import TrainingSpec


@dataclass(frozen=True, kw_only=True)
class Purification:
    """A model's own purifier settings: gamma, T and the radii to choose from, in input units."""

    step_size: float
    steps: int
    grid: tuple[float, ...]


class JointModel(Classifies):
    """`model(x)` gives logits; `model.auxiliary.loss(model, x)` gives the auxiliary loss of every row.

    `auxiliary` is None for networks without one (No Def, adversarial training): they cannot be purified.
    `training_spec` describes the training of the weights, where that is known.
    """

    def __init__(
        self,
        network: Network,
        auxiliary: AuxiliaryTask | None = None,
        *,
        purification: Purification | None = None,
        name: str = "model",
    ) -> None:
        super().__init__(network)
        self.task = auxiliary
        self.purification = purification
        self.name = name
        self.training_spec: TrainingSpec | None = None

    @property
    def purifiable(self) -> bool:
        """Whether the model has an auxiliary task."""
        return self.task is not None

    @property
    def alpha(self) -> float:
        """The weight of the auxiliary loss in training (Eq. 2); 0 without a task."""
        return 0.0 if self.task is None else self.task.alpha

    @property
    def auxiliary(self) -> AuxiliaryTask:
        """The auxiliary task, or a clear error where there is none."""
        if self.task is None:
            raise InputError(
                f"{self.name} was trained without an auxiliary task, so there is no loss to purify with; "
                "use a SOAP model (`soap models` lists them) or attach a task."
            )
        return self.task
