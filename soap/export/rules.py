"""Gradients that ONNX has no operator for, written with operators that it has.

A purification step differentiates the network, so the graph holds the backward pass of every layer. Most decompose into
plain arithmetic; those of convolutions and of average pooling are written here as (transposed) convolutions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from soap.errors import InputError
from soap.shapes import Tensor

aten = torch.ops.aten


def convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """The input's gradient of a convolution: the transposed convolution by the same weight, and the reverse."""
    if wanted[1] or wanted[2]:  # weights are frozen in every exported part
        return NotImplemented
    if transposed:
        none = [0] * len(stride)
        of_x = aten.convolution.default(gradient, weight, None, stride, padding, dilation, False, none, groups)
        for dim in range(2, x.ndim):  # an output padding beyond the stride makes it longer than x
            of_x = of_x.narrow(dim, 0, x.shape[dim])
        return of_x, None, None
    # Several input sizes lead to one output size; the output padding tells which it was.
    left_over = [
        x.shape[2 + d] + 2 * padding[d] - dilation[d] * (weight.shape[2 + d] - 1) - 1
        - (gradient.shape[2 + d] - 1) * stride[d]
        for d in range(len(stride))
    ]  # fmt: skip
    return aten.convolution.default(
        gradient, weight, None, stride, padding, dilation, True, left_over, groups
    ), None, None  # fmt: skip


def avg_pool2d_backward(
    gradient: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Every output's gradient, shared out over the pixels of its window: a transposed convolution by ones."""
    strides = stride or kernel  # an empty list means: as the kernel
    pair = tuple((each[0], each[-1]) for each in (kernel, strides, padding))
    counts = [
        _window_counts(outputs, inputs, *(each[d] for each in pair), with_padding=count_include_pad)
        for d, (outputs, inputs) in enumerate(zip(gradient.shape[2:], x.shape[2:], strict=True))
    ]
    divisor: Any = divisor_override
    if divisor is None:
        divisor = torch.tensor([[float(h * w) for w in counts[1]] for h in counts[0]], dtype=x.dtype)
    channels = x.shape[-3]
    ones = torch.ones(channels, 1, *pair[0], dtype=x.dtype)
    spread: Tensor = F.conv_transpose2d(gradient / divisor, ones, stride=pair[1], groups=channels)
    for d in range(2):  # cut the padding off, and fill up where no window reached
        start, size = pair[2][d], x.shape[2 + d]
        here = min(size, spread.shape[2 + d] - start)
        spread = spread.narrow(2 + d, start, here)
        if here < size:
            spread = F.pad(spread, (0, 0, 0, size - here) if d == 0 else (0, size - here))
    return spread


def _window_counts(
    outputs: int, inputs: int, kernel: int, stride: int, padding: int, *, with_padding: bool
) -> list[int]:
    """How many places of one axis each window averages over."""
    counts = []
    for place in range(outputs):
        start = place * stride - padding
        end = min(start + kernel, inputs + padding)
        counts.append(end - start if with_padding else min(end, inputs) - max(start, 0))
    return counts


RULES: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: convolution_backward,
    aten.avg_pool2d_backward.default: avg_pool2d_backward,
}


class PlainPooling(TorchFunctionMode):
    """Inside it adaptive average pooling is a mean over blocks.

    On channels-last images torch's own changes strides in place, whose gradient no rule can express.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.adaptive_avg_pool2d:
            return block_means(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def block_means(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """`adaptive_avg_pool2d` where the blocks do not overlap."""
    sizes = tuple(output_size) if isinstance(output_size, Sequence) else (output_size, output_size)
    height, width = input.shape[2:]
    rows, columns = sizes[0] or height, sizes[1] or width
    if height % rows or width % columns:
        raise InputError(
            f"adaptive average pooling from {height} x {width} to {rows} x {columns} has overlapping blocks, which "
            "cannot be exported; want an output size that divides the input's."
        )
    if rows == columns == 1:
        return input.mean((2, 3), keepdim=True)
    blocks = input.reshape(*input.shape[:2], rows, height // rows, columns, width // columns)
    return blocks.mean((3, 5))
