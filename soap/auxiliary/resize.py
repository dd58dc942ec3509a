"""Nearest-neighbour resizing with a choice of adjoint.

The forward pass copies input pixel floor(j * n / m) to output pixel j. The true gradient sends output j back to that
pixel. PyTorch 1.4.0, with which the paper's label-consistency results were made, computed it incorrectly on the GPU
(pytorch issue 38985): input pixel i collected the outputs floor(i * m / n) to floor((i + 1) * m / n) - 1, where the
true adjoint needs ceil. Purification depends on this displaced gradient, so it is kept as `nearest_floor_indexed`.
"""

from functools import lru_cache
from typing import Any

import torch

from soap.shapes import Float, Tensor


def nearest(x: Float[Tensor, "batch c h w"], side: tuple[int, int]) -> Float[Tensor, "batch c h2 w2"]:
    """Resize by nearest neighbour; autograd gives the true gradient."""
    for dim, size in ((2, side[0]), (3, side[1])):
        x = _take(x, dim, _sources(size, x.shape[dim], x.device))
    return x


def nearest_floor_indexed(x: Float[Tensor, "batch c h w"], side: tuple[int, int]) -> Float[Tensor, "batch c h2 w2"]:
    """Resize by nearest neighbour; the gradient is that of PyTorch 1.4.0 on the GPU."""
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
    """Return, along `dim`, the sum of the floor-indexed outputs of each input pixel i < size."""
    shape = [1] * gradient.ndim
    shape[dim] = size
    parts = [
        _take(gradient, dim, output) * inside.to(gradient.dtype).reshape(shape)
        for output, inside in _floor_indexed(gradient.shape[dim], size, gradient.device)
    ]
    return sum(parts[1:], start=parts[0])


def _take(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x.index_select(dim, index)`; ten times as fast on CPUs along the last dimension."""
    shape = [1] * x.ndim
    shape[dim] = len(index)
    return x.gather(dim, index.reshape(shape).expand(*x.shape[:dim], len(index), *x.shape[dim + 1 :]))


@lru_cache(maxsize=64)
def _sources(outputs: int, inputs: int, device: torch.device) -> Tensor:
    """Return the input pixel of each output pixel."""
    with torch.inference_mode(False):  # autograd saves this cached tensor
        return torch.arange(outputs, device=device) * inputs // outputs


@lru_cache(maxsize=64)
def _floor_indexed(outputs: int, inputs: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return, for k = 0, 1 ..., the k-th output that each input pixel collects, and 1 if it exists, else 0."""
    with torch.inference_mode(False):
        i = torch.arange(inputs, device=device)
        first, after = i * outputs // inputs, (i + 1) * outputs // inputs
        most = -(-outputs // inputs)
        return tuple(((first + k).clamp_max(outputs - 1), (first + k < after).float()) for k in range(most))
