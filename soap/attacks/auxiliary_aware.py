"""The auxiliary-aware attack (section 4.1 of the paper): raise the classification loss and lower the auxiliary loss."""

import math
from dataclasses import dataclass

from soap import validate
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import objective
from soap.auxiliary import JointModel
from soap.balls import Linf
from soap.descent import UNIT, Bounds, projected_gradient
from soap.errors import InputError
from soap.gradient_rules import FiniteLogits
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True, repr=False)
class AuxiliaryAwarePGD(Attack):
    """Ascend L_cls(x) - `beta` * L_aux(x) in the Linf ball of radius `eps`, from delta = 0.

    A positive `beta` lowers the loss that the purifier descends, so that the purifier changes little. A negative one
    attacks the auxiliary task, too. With 0 it is plain PGD. Needs a joint model.
    """

    eps: float
    step_size: float
    steps: int
    beta: float
    keep: str = "last"
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.positive("step_size", self.step_size)
        validate.at_least("steps", self.steps, 1)
        validate.choice("keep", self.keep, ("last", "best"))
        if not math.isfinite(self.beta):
            raise InputError(f"beta is {self.beta!r}, expected a finite weight of the auxiliary loss.")

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Run PGD once on the combined objective."""
        joint = model.model if isinstance(model, FiniteLogits) else model
        if not isinstance(joint, JointModel):
            raise InputError(
                f"got a {type(model).__name__}, which has no auxiliary task; expected a JointModel "
                "(the `.classifier` of a Defence), or use PGD."
            )
        task, classification = joint.auxiliary, objective("ce", self.targeted)
        return projected_gradient(
            lambda point: classification(model(point), y) - self.beta * task.loss(joint, point),
            x,
            ball=Linf(self.eps),
            step_size=self.step_size,
            steps=self.steps,
            bounds=self.bounds,
            keep_best=self.keep == "best",
        )
