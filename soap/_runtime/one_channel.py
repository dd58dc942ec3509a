"""Convolutions from and to a single channel on a CPU, as matrix products.

oneDNN computes the gradient of a convolution of grey images, and a transposed convolution to grey images, at a tenth of
the speed of other convolutions. Matrix products of unfolded images are two to five times faster.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from soap.shapes import Tensor

_active = threading.local()

ARGUMENTS: dict[Callable[..., Tensor], tuple[str, ...]] = {
    torch.conv2d: ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    torch.conv_transpose2d: ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
}
"""The functions that are replaced, with the names of their arguments in order."""

DEFAULTS = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}

MIN_BATCH = 8
"""Smaller batches are left to torch: the calls in Python cost more than the products save."""


@contextmanager
def fast_one_channel(x: Tensor, *, copies: int = 1) -> Iterator[None]:
    """Context in which convolutions with fixed weights from or to one channel are matrix products on a CPU.

    x: the images; nothing changes unless they are grey, on a CPU, and with their `copies` enough for a difference.
    Nested contexts of a thread count as one. Nothing changes while a model is traced or compiled.
    """
    grey = x.device.type == "cpu" and x.ndim == 4 and x.shape[1] == 1 and len(x) * copies >= MIN_BATCH
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if not grey or traced or getattr(_active, "here", False):
        yield
        return
    _active.here = True
    try:
        with _OneChannel():
            yield
    finally:
        _active.here = False


class _OneChannel(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if function in ARGUMENTS:
            named = dict(zip(ARGUMENTS[function], args, strict=False)) | given
            if _is_supported(**named):
                images, weight, bias = named.pop("input"), named.pop("weight"), named.pop("bias", None)
                convolution = _ToOneChannel if function is torch.conv_transpose2d else _FromOneChannel
                sizes = {name: _pair(value) for name, value in named.items() if name != "groups"}
                return convolution.apply(images, weight, bias, sizes)  # type: ignore[no-untyped-call]
        return function(*args, **given)


def _is_supported(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> bool:
    """Return whether one side of the fixed weights has one channel; other images than batches are left to torch."""
    fixed = not (weight.requires_grad or (bias is not None and bias.requires_grad))
    plain = input.device.type == "cpu" and input.dtype == weight.dtype == torch.float32
    batch = input.ndim == 4 and len(input) >= MIN_BATCH
    if not (fixed and plain and batch and weight.shape[1] == 1 == groups) or isinstance(padding, str):
        return False
    return all(more < step for more, step in zip(_pair(output_padding), _pair(stride), strict=True))


class _FromOneChannel(torch.autograd.Function):
    """A convolution of grey images; its gradient is `_ToOneChannel`."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, settings: dict[str, Any]) -> Tensor:
        ctx.weight, ctx.settings, ctx.sides = weight, settings, images.shape[2:]
        return torch.conv2d(images, weight, bias, **settings)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        settings = {**ctx.settings, "sides": ctx.sides}
        back = _ToOneChannel.apply(gradients[0], ctx.weight, None, settings)  # type: ignore[no-untyped-call]
        return back, None, None, None


class _ToOneChannel(torch.autograd.Function):
    """A transposed convolution to grey images; its gradient is `_FromOneChannel`."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, settings: dict[str, Any]) -> Tensor:
        ctx.weight, kernel = weight, weight.shape[2:]
        ctx.settings = {name: settings.get(name, default) for name, default in DEFAULTS.items()}
        stride, padding, dilation = ctx.settings.values()
        sides: list[int] = settings.get("sides") or [
            (side - 1) * step - 2 * pad + wide * (size - 1) + more + 1
            for side, size, step, pad, wide, more in zip(
                images.shape[2:], kernel, stride, padding, dilation, settings.get("output_padding", (0, 0)), strict=True
            )
        ]
        patches = images.permute(0, 2, 3, 1).flatten(1, 2) @ weight.flatten(1)
        out = F.fold(patches.transpose(1, 2), tuple(sides), kernel, dilation, padding, stride)
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back = _FromOneChannel.apply(gradients[0], ctx.weight, None, ctx.settings)  # type: ignore[no-untyped-call]
        return back, None, None, None


def _pair(value: Any) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value) * (2 if len(value) == 1 else 1)
