"""Convolutions that are differentiated twice at no more cost than once.

torch's second derivative of a convolution comes with the gradient of its weights, whether anybody asked for it or not:
a convolution whose kernel is as large as the image, which takes longer than all the rest. With fixed weights nothing of
it is needed. A convolution then is an affine map whose adjoint is a transposed convolution, and the other way round,
and either is differentiated by way of the other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from soap.shapes import Tensor

TRANSPOSED: dict[Callable[..., Tensor], Callable[..., Tensor]] = {
    torch.conv1d: torch.conv_transpose1d,
    torch.conv2d: torch.conv_transpose2d,
    torch.conv3d: torch.conv_transpose3d,
}
CONVOLUTIONS = {back: there for there, back in TRANSPOSED.items()}


class FixedConvolutions(TorchFunctionMode):
    """Inside, convolutions with fixed weights do without torch's second derivative; all else is as ever."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch would compute."""
        for known, call in ((TRANSPOSED, _convolved), (CONVOLUTIONS, _spread)):
            if function in known:
                return call(function, *args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _convolved(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution; names and order of the arguments are torch's."""
    settings = {"weight": weight, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    there = partial(function, bias=bias, **settings)
    if isinstance(padding, str) or not _fixed(input, weight, bias):
        return there(input)
    steps, pads, widths = (_of_each_axis(value, weight) for value in (stride, padding, dilation))

    def back(gradient: Tensor) -> Tensor:
        reached = [
            (out - 1) * step - 2 * pad + wide * (kernel - 1) + 1
            for out, step, pad, wide, kernel in zip(
                gradient.shape[2:], steps, pads, widths, weight.shape[2:], strict=True
            )
        ]
        rest = [side - far for side, far in zip(input.shape[2:], reached, strict=True)]  # what no step came to
        return TRANSPOSED[function](gradient, weight, None, steps, pads, rest, groups, widths)

    return _affine(input, there, back)


def _spread(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """A transposed convolution, likewise."""
    settings = {"weight": weight, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    there = partial(function, bias=bias, output_padding=output_padding, **settings)
    if not _fixed(input, weight, bias):
        return there(input)

    def back(gradient: Tensor) -> Tensor:
        whole = CONVOLUTIONS[function](gradient, bias=None, **settings)
        for axis, side in enumerate(input.shape[2:], start=2):  # `output_padding` may have made room for more
            whole = whole.narrow(axis, 0, side)
        return whole

    return _affine(input, there, back)


def _fixed(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the images alone take a gradient; a single one without its batch is left to torch."""
    learning = weight.requires_grad or (bias is not None and bias.requires_grad)
    return input.requires_grad and not learning and input.ndim == weight.ndim


def _of_each_axis(value: Any, weight: Tensor) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * (weight.ndim - 2) if len(values) == 1 else values


def _affine(x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    out: Tensor = _Affine.apply(x, there, back)  # type: ignore[no-untyped-call]
    return out


class _Affine(torch.autograd.Function):
    """An affine map and the adjoint of its linear part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(*gradients), None, None
