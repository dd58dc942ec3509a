"""Parts that every architecture shares: the `Network` record and input normalisation."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from soap.shapes import Float, Tensor


@dataclass(frozen=True, kw_only=True)
class Network:
    """Encoder z = f(x) and classifier g(z), without an auxiliary task.

    `inputs` is the shape of one input x, `features` the shape of its z.
    """

    encoder: nn.Module
    classifier: nn.Module
    inputs: tuple[int, ...]
    features: tuple[int, ...]
    classes: int


class Normalise(nn.Module):
    """(x - mean) / std for each channel; the first layer of a network, so that callers pass images in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).reshape(-1, 1, 1), persistent=False)

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Return normalised images in channels-last layout, in which the convolutions are faster."""
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
