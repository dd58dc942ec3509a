"""The layers of `norm` in one kernel forward and one back, for CUDA.

Each element knows its channel by its place: in channels-last memory channels are next to each other, otherwise a
channel's pixels are. The order of operations is that of cuDNN forward and of torch back.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl

from soap.shapes import Tensor

BLOCK = 1024


def forward(
    x: Tensor,
    summand: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    *,
    rectify: bool,
) -> Tensor:
    """batch_norm(x) + summand, rectified or not."""
    x, channel = _dense(x)
    summand = None if summand is None else _like(summand, x)
    out = torch.empty_like(x)
    _forward[_programs(x)](
        x, x if summand is None else summand, weight, bias, mean, var, out, eps, x.numel(),
        CHANNELS=x.shape[1], CHANNEL=channel, ADD=summand is not None, RECTIFY=rectify, BLOCK=BLOCK,
    )  # fmt: skip
    return out


def backward(
    gradient: Tensor, out: Tensor | None, weight: Tensor, var: Tensor, eps: float, *, split: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and, where `split`, of the summand; `out` is the output where it was rectified."""
    gradient, channel = _dense(gradient if out is None else _like(gradient, out))
    of_x = torch.empty_like(gradient)
    of_summand = None if not split else gradient if out is None else torch.empty_like(gradient)
    _backward[_programs(gradient)](
        gradient, gradient if out is None else out, weight, var, of_x, of_x if of_summand is None else of_summand,
        eps, gradient.numel(),
        CHANNELS=gradient.shape[1], CHANNEL=channel, RECTIFIED=out is not None, SPLIT=split, BLOCK=BLOCK,
    )  # fmt: skip
    return of_x, of_summand


def _dense(x: Tensor) -> tuple[Tensor, int]:
    """`x` without gaps, and how many elements apart its channels lie."""
    if x.is_contiguous(memory_format=torch.channels_last):
        return x, 1
    return x.contiguous(), x.shape[2] * x.shape[3]


def _like(x: Tensor, other: Tensor) -> Tensor:
    """`x` in the layout of `other`."""
    return x if x.stride() == other.stride() else torch.empty_like(other, dtype=x.dtype).copy_(x)


def _programs(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


@triton.jit
@no_type_check  # triton's language, not Python
def _forward(
    x, summand, weight, bias, mean, var, out, eps, count,
    CHANNELS: tl.constexpr, CHANNEL: tl.constexpr, ADD: tl.constexpr, RECTIFY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    c = (at // CHANNEL) % CHANNELS
    w, inverse = tl.load(weight + c), tl.rsqrt(tl.load(var + c) + eps)
    shift = tl.fma(-(tl.load(mean + c) * w), inverse, tl.load(bias + c))
    y = tl.fma(tl.load(x + at, mask=inside).to(tl.float32), w * inverse, shift)
    if ADD:
        y += tl.load(summand + at, mask=inside).to(tl.float32)
    if RECTIFY:
        y = tl.maximum(y, 0)
    tl.store(out + at, y, mask=inside)


@triton.jit
@no_type_check  # triton's language, not Python
def _backward(
    gradient, out, weight, var, of_x, of_summand, eps, count,
    CHANNELS: tl.constexpr, CHANNEL: tl.constexpr, RECTIFIED: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    c = (at // CHANNEL) % CHANNELS
    passed = tl.load(gradient + at, mask=inside).to(tl.float32)
    if RECTIFIED:
        passed = tl.where(tl.load(out + at, mask=inside) > 0, passed, 0.0)
        if SPLIT:
            tl.store(of_summand + at, passed, mask=inside)
    tl.store(of_x + at, passed * tl.load(weight + c) * tl.rsqrt(tl.load(var + c) + eps), mask=inside)
