"""Normalisation as a network's first layer, so that every caller speaks of images in [0, 1]."""

from collections.abc import Sequence

import torch
from torch import nn

from soap.shapes import Float, Tensor


class Normalise(nn.Module):
    """(x - mean) / std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).reshape(-1, 1, 1), persistent=False)

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Normalise a batch of images; channels last, as the convolutions to come want it, forward and back."""
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
