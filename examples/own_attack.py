"""Add an attack in one file: MI-FGSM, projected gradient steps with momentum (Dong et al. 2018).

    python examples/own_attack.py

A frozen dataclass holds the settings, and `perturb` runs the attack. The base class checks the inputs, and freezes and
restores the model. `loss_and_gradient` and `projected_step` are the two parts of the loop that all attacks share.
"""

from dataclasses import dataclass

import torch

import soap
from soap.attacks import Attack, Model, cross_entropy
from soap.balls import Linf
from soap.descent import loss_and_gradient, projected_step


@dataclass(frozen=True, kw_only=True)
class MomentumFGSM(Attack):
    eps: float
    step_size: float
    steps: int
    decay: float = 1.0

    def perturb(self, model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        point, momentum = x, torch.zeros_like(x)
        for _ in range(self.steps):
            _, gradient = loss_and_gradient(lambda p: cross_entropy(model(p), y), point)
            size = gradient.abs().flatten(1).mean(1).clamp_min(1e-12).reshape(-1, *[1] * (x.ndim - 1))
            momentum = self.decay * momentum + gradient / size
            point = projected_step(point, momentum, origin=x, ball=Linf(self.eps), step_size=self.step_size)
        return point


def main(n: int = 200) -> dict[str, float]:
    """Return the accuracy of the bundled CNN under the new attack, without and with purification."""
    model, data = soap.load("mnist-cnn-dr"), soap.data.load("mnist-mini").take(n)
    attack = MomentumFGSM(eps=0.3, step_size=0.03, steps=20)
    purify = soap.SOAP(model)
    rows = soap.evaluation.evaluate_transfer(model, data, {"momentum": attack}, [purify])
    return {"purified" if row.defence.purifies else "bare": row.accuracy for row in rows}


if __name__ == "__main__":
    print(main())
