"""Second derivatives of convolutions with fixed weights, without computing the gradients of the weights.

torch's double backward of a convolution always computes the weight gradients, which are convolutions with kernels as
large as the image. With fixed weights they are not needed. A convolution is then an affine map whose adjoint is a
transposed convolution, and the reverse, so each one is the derivative of the other.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from soap.shapes import Tensor

IS_TRANSPOSED: dict[Callable[..., Tensor], bool] = {
    torch.conv1d: False,
    torch.conv2d: False,
    torch.conv3d: False,
    torch.conv_transpose1d: True,
    torch.conv_transpose2d: True,
    torch.conv_transpose3d: True,
}
CONVOLUTION_ARGUMENTS = {
    False: ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    True: ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
}
"""Argument names of torch's functions in their order, by whether the convolution is transposed."""


class FixedConvolutions(TorchFunctionMode):
    """Context in which convolutions with fixed weights have a double backward without weight gradients."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the value that torch would compute."""
        given = kwargs or {}
        if function in IS_TRANSPOSED:
            named = dict(zip(CONVOLUTION_ARGUMENTS[IS_TRANSPOSED[function]], args, strict=False)) | given
            if _is_supported(**named):
                return _Affine.apply(named["input"], function, named)  # type: ignore[no-untyped-call]
        return function(*args, **given)


def _is_supported(input: Tensor, weight: Tensor, bias: Tensor | None = None, padding: Any = 0, **settings: Any) -> bool:
    """Return whether only the images need a gradient; padding given by name and unbatched images are left to torch."""
    trainable = weight.requires_grad or (bias is not None and bias.requires_grad)
    return input.requires_grad and not trainable and not isinstance(padding, str) and input.ndim == weight.ndim


class _Affine(torch.autograd.Function):
    """A convolution, transposed or not, as a function of the images; its backward is the adjoint of the linear part."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, function: Callable[..., Tensor], named: dict[str, Any]) -> Tensor:
        ctx.transposed, ctx.sides = IS_TRANSPOSED[function], images.shape[2:]
        ctx.settings = {name: value for name, value in named.items() if name != "input"}
        return function(images, **ctx.settings)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), weight = gradients, ctx.settings["weight"]
        stride, padding, dilation = (
            _per_axis(ctx.settings.get(name, default), weight)
            for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        )
        rest = [0] * len(ctx.sides)
        if not ctx.transposed:  # pixels at the far end that no stride reached
            places = zip(ctx.sides, gradient.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
            rest = [s - ((out - 1) * step - 2 * pad + wide * (k - 1) + 1) for s, out, k, step, pad, wide in places]
        groups = ctx.settings.get("groups", 1)
        back = torch.convolution(gradient, weight, None, stride, padding, dilation, not ctx.transposed, rest, groups)
        for axis, side in enumerate(ctx.sides, start=2):  # `output_padding` may have added pixels
            back = back.narrow(axis, 0, side)
        return back, None, None


def _per_axis(value: Any, weight: Tensor) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * (weight.ndim - 2) if len(values) == 1 else values
