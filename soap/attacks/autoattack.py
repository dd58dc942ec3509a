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

# Its warnings (randomised, dynamic ...) are checks of ours, too; without a handler Python would print them.
logging.getLogger("auto-attack").addHandler(logging.NullHandler())


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Attack):
    """The standard version: APGD-CE, targeted APGD-DLR, targeted FAB and Square, each on what still stands.

    It differentiates the model by autograd: of a defended model it gets what `Defended` passes back (BPDA).
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
        with torch.enable_grad():
            attack = pyautoattack.AutoAttack(
                model, norm=NORMS[self.norm], eps=self.eps, version=self.version, seed=self.seed, device=x.device
            )
            found, *_ = attack.run_standard_evaluation(x, y, batch_size=len(x))
        images: Tensor = found.detach()
        return images
