"""Convolutions that are differentiated twice without the gradients of their weights.

torch's second derivative of a convolution comes with those, whether anybody asked for them or not: convolutions whose
kernels are as large as the image. With fixed weights nothing of it is needed. A convolution then is an affine map whose
adjoint is a transposed convolution, and the other way round, and either is differentiated by way of the other.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from soap.shapes import Tensor

TRANSPOSES: dict[Callable[..., Tensor], bool] = {
    torch.conv1d: False,
    torch.conv2d: False,
    torch.conv3d: False,
    torch.conv_transpose1d: True,
    torch.conv_transpose2d: True,
    torch.conv_transpose3d: True,
}
ARGUMENTS = {
    False: ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    True: ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
}
"""Names and order of torch's, by whether it transposes."""


class FixedConvolutions(TorchFunctionMode):
    """Inside, convolutions with fixed weights do without torch's second derivative; all else is as ever."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch would compute."""
        given = kwargs or {}
        if function in TRANSPOSES:
            named = dict(zip(ARGUMENTS[TRANSPOSES[function]], args, strict=False)) | given
            if _fixed(**named):
                return _Affine.apply(named["input"], function, named)  # type: ignore[no-untyped-call]
        return function(*args, **given)


def _fixed(input: Tensor, weight: Tensor, bias: Tensor | None = None, padding: Any = 0, **settings: Any) -> bool:
    """Whether the images alone take a gradient. Padding by name, or an image without its batch, is left to torch."""
    learning = weight.requires_grad or (bias is not None and bias.requires_grad)
    return input.requires_grad and not learning and not isinstance(padding, str) and input.ndim == weight.ndim


class _Affine(torch.autograd.Function):
    """A convolution of either kind as a function of the images; on the way back, the adjoint of its linear part."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, function: Callable[..., Tensor], named: dict[str, Any]) -> Tensor:
        ctx.transposes, ctx.sides = TRANSPOSES[function], images.shape[2:]
        ctx.settings = {name: value for name, value in named.items() if name != "input"}
        return function(images, **ctx.settings)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), weight = gradients, ctx.settings["weight"]
        stride, padding, dilation = (
            _of_each_axis(ctx.settings.get(name, default), weight)
            for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        )
        rest = [0] * len(ctx.sides)
        if not ctx.transposes:  # what no step came to at the far end
            places = zip(ctx.sides, gradient.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
            rest = [s - ((out - 1) * step - 2 * pad + wide * (k - 1) + 1) for s, out, k, step, pad, wide in places]
        groups = ctx.settings.get("groups", 1)
        back = torch.convolution(gradient, weight, None, stride, padding, dilation, not ctx.transposes, rest, groups)
        for axis, side in enumerate(ctx.sides, start=2):  # `output_padding` may have made room for more
            back = back.narrow(axis, 0, side)
        return back, None, None


def _of_each_axis(value: Any, weight: Tensor) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * (weight.ndim - 2) if len(values) == 1 else values
