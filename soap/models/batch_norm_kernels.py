"""Triton kernels for `batch_norm`: one kernel forward, one backward.

The channel of an element follows from its address: channels are adjacent in channels-last memory, pixels of a channel
otherwise. The order of operations is cuDNN's forward and torch's backward, so results are equal bit for bit.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl

from soap.shapes import Tensor

BLOCK = 1024
"""Elements that one Triton program handles."""


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
    """Return batch_norm(x) + summand, with ReLU if `rectify`."""
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
    """Return the gradients of x and, if `split`, of the summand; `out` is the forward output if it was rectified."""
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
    """Return `x` without gaps in memory, and the stride between its channels in elements."""
    if x.is_contiguous(memory_format=torch.channels_last):
        return x, 1
    return x.contiguous(), x.shape[2] * x.shape[3]


def _like(x: Tensor, other: Tensor) -> Tensor:
    """Return `x` in the memory layout of `other`."""
    return x if x.stride() == other.stride() else torch.empty_like(other, dtype=x.dtype).copy_(x)


def _programs(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


@triton.jit
@no_type_check  # triton's own language
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
@no_type_check  # triton's own language
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
