"""Causal convolutions and the gated residual block of PixelCNN++ (Salimans et al. 2017).

A causal convolution sees, along one axis of the image, a position and the positions before it. It gives the same result
for a whole image as for successive slices with cached inputs. Training uses whole images. Purification uses one row at
a time; `pixel_generation.RowDecoder` handles the pixels within a row.
"""

import torch
from torch import nn
from torch.nn import functional as F

from soap.shapes import Float, Tensor

Cache = dict[nn.Module, Tensor]
"""Cached last inputs of each causal convolution; zeros before the first slice."""

DOWN, ACROSS = 2, 3
"""The axes of [batch, channels, height, width] along which a convolution may be causal."""

KERNEL_SIZES = {DOWN: (2, 3), ACROSS: (1, 3)}
"""Kernel (rows, columns): this row and the row above, one column on both sides; this pixel and two to its left."""


class CausalConv(nn.Conv2d):
    """Convolution that sees nothing after the current position along `axis`; zero padding outside the image."""

    bias: Tensor

    def __init__(self, before: int, after: int, *, axis: int) -> None:
        rows, columns = KERNEL_SIZES[axis]
        super().__init__(before, after, (rows, columns), padding=(0, columns // 2 if axis == DOWN else 0))
        self.axis = axis
        self.memory = KERNEL_SIZES[axis][axis - 2] - 1

    def forward(self, x: Float[Tensor, "batch c h w"], cache: Cache | None = None) -> Float[Tensor, "batch c2 h w"]:
        """Convolve a whole image or, with a `cache`, the slices that follow the cached ones."""
        if cache is None:
            x = F.pad(x, (0, 0, self.memory, 0) if self.axis == DOWN else (self.memory, 0, 0, 0))
        else:
            x = torch.cat([cache[self], x], self.axis)
            # A copy, because a view would keep all of x in memory.
            cache[self] = x.narrow(self.axis, x.shape[self.axis] - self.memory, self.memory).clone()
        return super().forward(x)

    def matrix(self) -> Float[Tensor, "c2 taps"]:
        """Return the weight as a matrix that multiplies the flattened pixels under the kernel."""
        return self.weight.permute(0, 2, 3, 1).flatten(1)


class GatedBlock(nn.Module):
    """x + a * sigmoid(b); a and b come from two convolutions with concatenated ELUs."""

    def __init__(self, channels: int, *, axis: int, dropout: float) -> None:
        super().__init__()
        self.first = CausalConv(2 * channels, channels, axis=axis)
        self.second = CausalConv(2 * channels, 2 * channels, axis=axis)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch c h w"],
        cache: Cache | None = None,
        link: Float[Tensor, "batch c h w"] | None = None,
    ) -> Float[Tensor, "batch c h w"]:
        """Return the block's output; `link` is added between the convolutions."""
        y = self.first(concat_elu(x), cache)
        y = y if link is None else y + link
        value, gate = self.second(self.dropout(concat_elu(y)), cache).chunk(2, 1)
        out: Tensor = x + value * gate.sigmoid()
        return out


def concat_elu(x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c2 h w"]:
    """Return ELU(x) and ELU(-x) concatenated: twice the channels."""
    return F.elu(torch.cat([x, -x], 1))


def shifted(x: Float[Tensor, "batch c h w"], axis: int) -> Float[Tensor, "batch c h w"]:
    """Return `x` shifted by one along `axis`, with a zero first: each position holds its predecessor."""
    before = F.pad(x, (0, 0, 1, 0) if axis == DOWN else (1, 0, 0, 0))
    return before.narrow(axis, 0, x.shape[axis])
