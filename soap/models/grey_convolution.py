"""Convolution of grey images whose input gradient is fast on CPUs."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from soap.shapes import Float, Tensor


class GreyConv2d(nn.Conv2d):
    """`nn.Conv2d` of one input channel; for frozen weights on a CPU the input gradient is one matrix product.

    oneDNN's own gradient for a single channel takes 4.2 ms for 128 digits at stride 2, a quarter of a whole gradient of
    the CNN; the product takes 0.7 ms.
    """

    def forward(self, x: Float[Tensor, "batch 1 h w"]) -> Float[Tensor, "batch c h2 w2"]:
        """Return the convolution."""
        learning = torch.is_grad_enabled() and self.weight.requires_grad
        if learning or not x.requires_grad or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        out: Tensor = _Frozen.apply(x, self.weight, self.bias, self.stride, self.padding)  # type: ignore[no-untyped-call]
        return out


class _Frozen(torch.autograd.Function):
    """The convolution as a function of `x`; the parameters are constants."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.side, ctx.stride, ctx.padding = x.shape[2:], stride, padding
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (weight,) = gradients, ctx.saved_tensors
        patches = weight.flatten(1).T @ gradient.flatten(2)
        image = F.fold(patches, ctx.side, weight.shape[2:], padding=ctx.padding, stride=ctx.stride)
        return image, None, None, None, None
