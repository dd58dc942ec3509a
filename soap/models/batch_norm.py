"""Batch norm fused with the addition and the ReLU that follow it.

Attacks and purifiers use frozen weights and fixed statistics. Each layer is then one elementwise function whose
gradient needs only its output. This halves the memory traffic, which takes most of a small network's time outside its
convolutions. Results equal `nn.BatchNorm2d` bit for bit, because a sign step amplifies any difference.
"""

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from soap.shapes import Float, Tensor

try:
    from soap.models import batch_norm_kernels as kernels
except ImportError:  # triton is installed only with torch for CUDA
    kernels = None  # type: ignore[assignment]


class Norm(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, computed in one pass when only the input needs a gradient."""

    rectifies: ClassVar[bool] = False

    def forward(
        self, x: Float[Tensor, "batch c h w"], summand: Float[Tensor, "batch c h w"] | None = None
    ) -> Float[Tensor, "batch c h w"]:
        """Return batch_norm(x) + summand, with ReLU if the layer `rectifies`."""
        learning = torch.is_grad_enabled() and self.weight.requires_grad
        if self.training or learning or torch.compiler.is_compiling():
            out = super().forward(x)
            out = out if summand is None else out + summand
            return F.relu(out) if self.rectifies else out
        normed: Tensor = _Frozen.apply(  # type: ignore[no-untyped-call]
            x, summand, self.weight, self.bias, self.running_mean, self.running_var, self.eps, self.rectifies
        )
        return normed


class RectifiedNorm(Norm):
    """max(0, batch_norm(x) + summand)."""

    rectifies = True


class _Frozen(torch.autograd.Function):
    """batch_norm(x) + summand as a function of `x` and `summand`; parameters and statistics are constants."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        summand: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        eps: float,
        rectify: bool,
    ) -> Tensor:
        if _by_kernel(x):
            out = kernels.forward(x, summand, weight, bias, mean, var, eps, rectify=rectify)
        else:
            out = F.batch_norm(x, mean, var, weight, bias, eps=eps)
            out = out if summand is None else out.add_(summand)
            out = out.relu_() if rectify else out
        ctx.save_for_backward(out if rectify else None, weight, var)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        out, weight, var = ctx.saved_tensors
        constants = (None,) * 6
        split = ctx.needs_input_grad[1]
        if _by_kernel(gradient) and not torch.is_grad_enabled():  # enabled: second derivatives
            return *kernels.backward(gradient, out, weight, var, ctx.eps, split=split), *constants
        passed = gradient if out is None else torch.ops.aten.threshold_backward(gradient, out, 0)
        scale = (weight * (var + ctx.eps).rsqrt()).to(gradient.dtype).reshape(-1, 1, 1)
        if split or out is None:  # `passed` is also returned or owned by the caller: no in-place update
            return passed * scale, passed if split else None, *constants
        return passed.mul_(scale), None, *constants


def _by_kernel(x: Tensor) -> bool:
    """Return whether to use the Triton kernels, which compute in single precision."""
    return kernels is not None and x.is_cuda and x.dtype != torch.float64
