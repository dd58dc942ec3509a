"""Nearest-neighbour resizing with a choice of adjoint.

The forward pass takes output pixel j from input pixel floor(j * n / m). Its true gradient sends output j
back to that very pixel. PyTorch 1.4.0, with which the paper's label-consistency figures were made, computed
it wrongly on the GPU (pytorch issue 38985): input pixel i collected the outputs floor(i * m / n) up to
floor((i + 1) * m / n) - 1, where the true adjoint needs ceil. The displaced gradient is what purifies, so
it is kept here as `floor_indexed`.
"""

from typing import Any

import torch

from soap.shapes import Float, Tensor


def nearest(x: Float[Tensor, "batch c h w"], side: tuple[int, int]) -> Float[Tensor, "batch c h2 w2"]:
    """Resize by nearest neighbour; autograd gives the true gradient."""
    for dim, size in ((2, side[0]), (3, side[1])):
        index = torch.arange(size, device=x.device) * x.shape[dim] // size
        x = x.index_select(dim, index)
    return x


def nearest_floor_indexed(x: Float[Tensor, "batch c h w"], side: tuple[int, int]) -> Float[Tensor, "batch c h2 w2"]:
    """The same resize forward; backward as PyTorch 1.4.0 had it on the GPU."""
    resized: Tensor = _FloorIndexed.apply(x, side)  # type: ignore[no-untyped-call]
    return resized


class _FloorIndexed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, side: tuple[int, int]) -> Tensor:
        ctx.side = (x.shape[2], x.shape[3])
        return nearest(x, side)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        for dim, size in ((2, ctx.side[0]), (3, ctx.side[1])):
            gradient = _collect(gradient, dim, size)
        return gradient, None


def _collect(gradient: Tensor, dim: int, size: int) -> Tensor:
    """Along `dim`, give input pixel i < size the sum of its floor-indexed outputs."""
    outputs = gradient.shape[dim]
    i = torch.arange(size, device=gradient.device)
    first, after = i * outputs // size, (i + 1) * outputs // size
    shape = [1] * gradient.ndim
    shape[dim] = size
    total = torch.zeros_like(gradient.narrow(dim, 0, 1)).repeat_interleave(size, dim)
    for k in range(-(-outputs // size)):  # no input pixel collects more than ceil(outputs / size)
        inside = (first + k < after).to(gradient.dtype).reshape(shape)
        total = total + inside * gradient.index_select(dim, (first + k).clamp_max(outputs - 1))
    return total
