"""AutoAttack (Croce & Hein 2020) as its authors' package runs it, behind the call that all attacks share.

The package `pyautoattack` is an extra: `pip install "soap-defense[autoattack]"`.
"""

import logging
from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Attack, Model
from soap.errors import InputError
from soap.shapes import Tensor

NORMS = {"linf": "Linf", "l2": "L2"}

BY_DLR = ("apgd-t", "apgd-dlr")
"""Its parts that go by the DLR loss, which compares three or four classes."""

# Its warnings (randomised, dynamic ...) are checks of ours, too; without a handler Python would print them.
logging.getLogger("auto-attack").addHandler(logging.NullHandler())


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Attack):
    """The standard version: APGD-CE, targeted APGD-DLR, targeted FAB and Square, each on what still stands.

    Of fewer than four classes the parts that go by the DLR loss are left out; of fewer than ten, targets are fewer.
    It differentiates the model by autograd: of a defended model it gets what `Defence` passes back (BPDA).
    """

    eps: float
    norm: str = "linf"
    version: str = "standard"
    seed: int = 0

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.choice("norm", self.norm, tuple(NORMS))
        validate.choice("version", self.version, ("standard", "plus"))

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Run the package on the whole batch."""
        try:
            import pyautoattack
        except ImportError as error:
            raise InputError(
                "AutoAttack needs the package pyautoattack, which is not installed; "
                'run `pip install "soap-defense[autoattack]"`, or leave the protocol autoattack out.'
            ) from error
        if x.dtype == torch.float64:
            raise InputError("AutoAttack's package computes in single precision, got float64; convert by .float().")
        classes = model(x[:1]).shape[1]
        with torch.enable_grad():
            attack = pyautoattack.AutoAttack(
                model, norm=NORMS[self.norm], eps=self.eps, version=self.version, seed=self.seed, device=x.device
            )
            for part in (attack.apgd_targeted, attack.fab):
                part.n_target_classes = min(part.n_target_classes, classes - 1)
            if classes < 4:
                attack.attacks_to_run = [name for name in attack.attacks_to_run if name not in BY_DLR]
            found, *_ = attack.run_standard_evaluation(x, y, batch_size=len(x))
        images: Tensor = found.detach()
        return images
