"""AutoAttack (Croce & Hein 2020) from its authors' package, with the interface of all attacks.

The package `pyautoattack` is an extra: `pip install '.[autoattack]'`.
"""

import logging
from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Attack, Model
from soap.errors import InputError
from soap.shapes import Tensor

NORMS = {"linf": "Linf", "l2": "L2"}

DLR_PARTS = ("apgd-t", "apgd-dlr")
"""Parts that use the DLR loss, which compares three or four classes."""

# Without a handler Python would print the package's warnings (randomised, dynamic ...); the suite's checks cover them.
logging.getLogger("auto-attack").addHandler(logging.NullHandler())


@dataclass(frozen=True, kw_only=True, repr=False)
class AutoAttack(Attack):
    """The standard version: APGD-CE, targeted APGD-DLR, targeted FAB and Square, each on the samples not broken so far.

    version: "rand" is for random models: APGD with the mean gradient of 20 draws, by cross-entropy and by DLR.
    With fewer than four classes the parts with the DLR loss are left out; with fewer than ten there are fewer targets.
    It differentiates the model by autograd: on a `Defence` by the exact gradient where that is sound, else straight
    through the purifier (BPDA).
    """

    eps: float
    norm: str = "linf"
    version: str = "standard"
    seed: int = 0

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.choice("norm", self.norm, tuple(NORMS))
        validate.choice("version", self.version, ("standard", "plus", "rand"))

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Run the package on the whole batch."""
        try:
            import pyautoattack
        except ImportError as error:
            raise InputError(
                "AutoAttack needs the package pyautoattack, which is not installed; "
                "run `pip install '.[autoattack]'`, or leave out the protocol autoattack."
            ) from error
        if x.dtype == torch.float64:
            raise InputError("AutoAttack's package computes in single precision, got float64; convert with .float().")
        classes = model(x[:1]).shape[1]
        with torch.enable_grad():
            attack = pyautoattack.AutoAttack(
                model, norm=NORMS[self.norm], eps=self.eps, version=self.version, seed=self.seed, device=x.device
            )
            for part in (attack.apgd_targeted, attack.fab):
                part.n_target_classes = min(part.n_target_classes, classes - 1)
            if classes < 4:
                attack.attacks_to_run = [name for name in attack.attacks_to_run if name not in DLR_PARTS]
            found, *_ = attack.run_standard_evaluation(x, y, batch_size=len(x))
        images: Tensor = found.detach()
        return images
