"""Convolutions that never look ahead, and the gated block made of them.

A causal convolution sees, along one axis of the image, a position and those before it. So it can be fed a whole image
at once, or the image slice by slice with what it saw last remembered in between, with the same result: training takes
the first way, purification the second, row by row; pixels are another matter (`left_row`).
"""

import torch
from torch import nn
from torch.nn import functional as F

from soap.shapes import Float, Tensor

Past = dict[nn.Module, Tensor]
"""What every causal convolution still needs of the slices fed so far; zeros before the first."""

DOWN, ACROSS = 2, 3
"""The axes of [batch, channels, height, width] along which a convolution may be causal."""

REACH = {DOWN: (2, 3), ACROSS: (1, 3)}
"""Kernels (rows, columns): this row and the one above, to both sides; this pixel and two to its left."""


class CausalConv(nn.Conv2d):
    """A convolution that along `axis` sees nothing after the position it stands at; zeros lie outside the image."""

    bias: Tensor

    def __init__(self, before: int, after: int, *, axis: int) -> None:
        rows, columns = REACH[axis]
        super().__init__(before, after, (rows, columns), padding=(0, columns // 2 if axis == DOWN else 0))
        self.axis = axis
        self.memory = REACH[axis][axis - 2] - 1

    def forward(self, x: Float[Tensor, "batch c h w"], past: Past | None = None) -> Float[Tensor, "batch c2 h w"]:
        """Convolve a whole image, or, where a `past` is given, the slices that follow those it holds."""
        if past is None:
            x = F.pad(x, (0, 0, self.memory, 0) if self.axis == DOWN else (self.memory, 0, 0, 0))
        else:
            x = torch.cat([past[self], x], self.axis)
            # A copy: a view would keep all of x in memory.
            past[self] = x.narrow(self.axis, x.shape[self.axis] - self.memory, self.memory).clone()
        return super().forward(x)

    def matrix(self) -> Float[Tensor, "c2 taps"]:
        """What multiplies the pixels within reach, side by side as in the image."""
        return self.weight.permute(0, 2, 3, 1).flatten(1)


class GatedBlock(nn.Module):
    """x + a * sigmoid(b), where a and b are two convolutions deep, with concatenated ELUs (Salimans et al. 2017)."""

    def __init__(self, channels: int, *, axis: int, dropout: float) -> None:
        super().__init__()
        self.first = CausalConv(2 * channels, channels, axis=axis)
        self.second = CausalConv(2 * channels, 2 * channels, axis=axis)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch c h w"],
        past: Past | None = None,
        link: Float[Tensor, "batch c h w"] | None = None,
    ) -> Float[Tensor, "batch c h w"]:
        """One residual step; `link` is added between the convolutions."""
        y = self.first(concat_elu(x), past)
        y = y if link is None else y + link
        value, gate = self.second(self.dropout(concat_elu(y)), past).chunk(2, 1)
        out: Tensor = x + value * gate.sigmoid()
        return out


def concat_elu(x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c2 h w"]:
    """ELU of x and of -x, side by side: twice the channels, and no sign is lost."""
    return F.elu(torch.cat([x, -x], 1))


def shifted(x: Float[Tensor, "batch c h w"], axis: int) -> Float[Tensor, "batch c h w"]:
    """`x` moved on by one along `axis`, zeros coming in: what lies at a position is the one before it."""
    before = F.pad(x, (0, 0, 1, 0) if axis == DOWN else (1, 0, 0, 0))
    return before.narrow(axis, 0, x.shape[axis])
