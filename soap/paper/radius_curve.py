"""Mean auxiliary loss against the purification radius, and the elbow of that curve (Figure 3)."""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch

from soap import validate
from soap._runtime.isolation import isolated
from soap.attacks import Attack
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import Watch
from soap.purifiers import SOAP
from soap.purifiers.grid import descend_grid
from soap.shapes import Tensor

ELBOW_SHARE = 0.95
"""Share of the whole decrease at which the loss has "approximately stopped decreasing" (section 3.3)."""


@dataclass(frozen=True, kw_only=True)
class RadiusCurve:
    """Mean auxiliary losses of `n` images: clean, attacked, and purified with every radius (ascending).

    eps_adv: the largest change of a pixel by the attack. radii, eps_adv: in units of the input, [0, 1].
    """

    file_prefix: ClassVar[str] = "curve"
    model: str
    data: str
    attack: str
    n: int
    eps_adv: float
    clean: float
    adversarial: float
    radii: tuple[float, ...]
    purified: tuple[float, ...]
    provenance: dict[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.radii) != len(self.purified) or not self.radii:
            raise InputError(
                f"got {len(self.radii)} radii and {len(self.purified)} losses; expected one loss for each radius."
            )

    @property
    def elbow(self) -> float:
        """Smallest radius at which the loss has made `ELBOW_SHARE` of its decrease from the attacked level."""
        enough = self.adversarial - ELBOW_SHARE * (self.adversarial - min(self.purified))
        lowest = self.radii[self.purified.index(min(self.purified))]  # if no radius lowers the loss
        return next((radius for radius, loss in zip(self.radii, self.purified, strict=True) if loss <= enough), lowest)


def measure_radius_curve(
    model: JointModel,
    data: Dataset,
    attack: Attack,
    *,
    batch: int = 500,
    seed: int = 0,
    watch: Watch = lambda what, done, total: None,
) -> RadiusCurve:
    """Attack the bare classifier on all images of `data`, then purify with each radius of the model's grid."""
    validate.at_least("batch", batch, 1)
    task, purifier = model.auxiliary, SOAP(model)

    def loss(x: Tensor) -> Tensor:
        return task.loss(model, x)

    clean, adversarial, eps_adv = 0.0, 0.0, 0.0
    purified = torch.zeros(len(purifier.grid), dtype=torch.float64)
    for first in range(0, len(data), batch):
        x, y = data.x[first : first + batch], data.y[first : first + batch]
        x_adv = attack(model, x, y)
        with isolated(model), torch.no_grad():
            walk = descend_grid(
                loss, x_adv, purifier.grid, step_size=purifier.step_size, steps=purifier.steps, bounds=purifier.bounds
            )
            clean += float(loss(x).sum())
        adversarial += float(walk.loss_before.sum())
        purified += walk.losses.sum(1).double().cpu()
        eps_adv = max(eps_adv, float((x_adv - x).abs().max()))
        watch("loss against radius", first + len(x), len(data))
    return RadiusCurve(
        model=model.name,
        data=data.name,
        attack=repr(attack),
        n=len(data),
        eps_adv=eps_adv,
        clean=clean / len(data),
        adversarial=adversarial / len(data),
        radii=purifier.grid,
        purified=tuple((purified / len(data)).tolist()),
        provenance=asdict(gather(model, data, seed=seed, batch=batch)),
    )
