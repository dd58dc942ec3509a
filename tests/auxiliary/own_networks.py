"""A user's classifier, independent of this package, and images for it."""

import torch
from torch import nn
from torch.nn import functional as F

import soap


class OwnNetwork(nn.Module):
    """A network with batch norm and dropout, whose last layer is defined first."""

    def __init__(self, channels: int = 1, classes: int = 4) -> None:
        super().__init__()
        self.last = nn.Linear(12, classes)
        self.conv = nn.Conv2d(channels, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.features(x)))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


def own_network(channels: int = 1, classes: int = 4) -> OwnNetwork:
    with soap._runtime.isolation.preserved_random_state():
        torch.manual_seed(0)
        return OwnNetwork(channels, classes)


def images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))
