"""The auxiliary-aware attack (section 4.1 of the paper): fool the classifier while pleasing the purifier."""

import math
from dataclasses import dataclass

from soap import validate
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import cross_entropy
from soap.auxiliary import JointModel
from soap.balls import Linf
from soap.descent import ascend
from soap.errors import InputError
from soap.gradient_rules import FiniteLogits
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True)
class AuxiliaryAwarePGD(Attack):
    """Climb L_cls(x) - `beta` * L_aux(x) in the Linf ball of radius `eps`, from delta = 0.

    A positive `beta` lowers the loss which the purifier descends, so that it finds little to mend; a negative
    one attacks the auxiliary task as well; 0 is plain PGD. Takes a joint model.
    """

    eps: float
    step_size: float
    steps: int
    beta: float
    keep: str = "last"

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.positive("step_size", self.step_size)
        validate.at_least("steps", self.steps, 1)
        validate.choice("keep", self.keep, ("last", "best"))
        if not math.isfinite(self.beta):
            raise InputError(f"beta is {self.beta!r}, want a finite number: how much the auxiliary loss weighs.")

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """One walk on the combined objective."""
        joint = model.model if isinstance(model, FiniteLogits) else model
        if not isinstance(joint, JointModel):
            raise InputError(
                f"got a {type(model).__name__}, which has no auxiliary task to be aware of; want a JointModel "
                "(a defended model's is its `.classifier`), or attack with PGD."
            )
        task = joint.auxiliary
        return ascend(
            lambda point: cross_entropy(model(point), y) - self.beta * task.loss(joint, point),
            x,
            ball=Linf(self.eps),
            step_size=self.step_size,
            steps=self.steps,
            keep_best=self.keep == "best",
        )
