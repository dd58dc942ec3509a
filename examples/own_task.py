"""Add an auxiliary task in one file: inpainting. The centre of the image is hidden; a decoder predicts it.

    python examples/own_task.py

A task has a head, training losses, and the loss that purification minimises: one value per sample, without noise,
differentiable in the input.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import soap
from soap.auxiliary import AuxiliaryTask, JointLosses, Purification, accuracy
from soap.training import Schedule, train


class Inpainting(AuxiliaryTask):
    def __init__(self, features: int, hidden: int = 10, *, alpha: float = 10.0, noise: float = 0.5) -> None:
        super().__init__()
        self.hidden, self.alpha, self.noise = hidden, alpha, noise
        self.head = nn.Sequential(nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, hidden * hidden), nn.Sigmoid())

    def losses(self, model, x, y, generator):
        noisy = (x + self.noise * torch.randn(x.shape, generator=generator, device=x.device)).clamp(0, 1)
        logits = model(noisy)
        predicted = self.head(model.encoder(self._masked(noisy)))
        return JointLosses(F.cross_entropy(logits, y), F.mse_loss(predicted, self._centre(x)), accuracy(logits, y))

    def loss(self, model, x):
        predicted = self.head(model.encoder(self._masked(x)))
        return (predicted - self._centre(x)).square().mean(1)

    def _window(self, x: torch.Tensor) -> tuple[slice, slice]:
        top, left = ((side - self.hidden) // 2 for side in x.shape[2:])
        return slice(top, top + self.hidden), slice(left, left + self.hidden)

    def _centre(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self._window(x)
        return x[:, :, rows, columns].flatten(1)

    def _masked(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self._window(x)
        mask = torch.ones_like(x)
        mask[:, :, rows, columns] = 0
        return x * mask


def main(epochs: int = 10, n: int = 500) -> dict[str, float]:
    """Train jointly on the bundled digits, then return the accuracy on PGD examples without and with purification."""
    network = soap.models.fcn(dropout=0.0)
    settings = Purification(step_size=0.1, steps=5, grid=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
    model = soap.JointModel(network, Inpainting(network.features[0]), purification=settings, name="inpainting")
    with tempfile.TemporaryDirectory() as folder:
        train(model, soap.data.load("mnist-mini", "train"), Schedule(epochs=epochs, lr=0.05), out=Path(folder))
    attack = soap.attacks.PGD(eps=0.2, step_size=0.02, steps=20)
    digits = soap.data.load("mnist-mini").take(n)
    rows = soap.evaluation.evaluate_transfer(model, digits, {"pgd": attack}, [soap.SOAP(model)])
    return {"purified" if row.defence.purifies else "bare": row.accuracy for row in rows}


if __name__ == "__main__":
    print(main())
