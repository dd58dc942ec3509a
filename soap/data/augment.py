"""Random changes of whole batches, on the batch's device, drawn from a `torch.Generator`.

Each image has its own draw; there is no loop over images. The same seed gives the same batch.
"""

import math

import torch

from soap._runtime import distributed
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor


def random_crop(
    x: Float[Tensor, "batch channels height width"], padding: int, generator: torch.Generator
) -> Float[Tensor, "batch channels height width"]:
    """Shift each image by up to `padding` pixels each way; what comes in from outside is 0 (black)."""
    _check(x, generator)
    if padding < 0:
        raise InputError(f"padding is {padding}; wanted 0 or more pixels.")
    batch, channels, height, width = x.shape
    padded = torch.nn.functional.pad(x, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2, batch), generator=generator, device=x.device)
    rows = top[:, None] + torch.arange(height, device=x.device)
    columns = left[:, None] + torch.arange(width, device=x.device)
    image = torch.arange(batch, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def random_flip(
    x: Float[Tensor, "batch channels height width"], generator: torch.Generator
) -> Float[Tensor, "batch channels height width"]:
    """Mirror each image left to right with probability 1/2."""
    _check(x, generator)
    mirrored = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    return torch.where(mirrored[:, None, None, None], x.flip(-1), x)


def gaussian_noise(
    x: Float[Tensor, "batch *shape"],
    sigma: float,
    generator: torch.Generator,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Float[Tensor, "batch *shape"]:
    """Add independent N(0, sigma^2) to every value, then clip to `clip` (None: do not clip)."""
    _check(x, generator, image=False)
    if not (math.isfinite(sigma) and sigma >= 0):
        raise InputError(f"sigma is {sigma}; wanted a finite number, 0 or more.")
    if clip is not None and not clip[0] < clip[1]:
        raise InputError(f"clip is {clip}; wanted (low, high) with low < high, or None.")
    noisy = distributed.normal_like(x, generator).mul_(sigma).add_(x)
    return noisy if clip is None else noisy.clamp_(*clip)


def random_rotation(
    x: Float[Tensor, "batch channels side side"], generator: torch.Generator
) -> tuple[Float[Tensor, "batch channels side side"], Int[Tensor, " batch"]]:
    """Turn each square image by k quarter turns anticlockwise, k uniform in {0, 1, 2, 3}; returns (x, k)."""
    _check(x, generator)
    if x.shape[-1] != x.shape[-2]:
        raise InputError(f"images are {x.shape[-2]} x {x.shape[-1]}; wanted square ones to turn by 90 degrees.")
    k = torch.randint(4, (len(x),), generator=generator, device=x.device)
    turn = k[:, None, None, None]
    # A half turn where k has the bit 2, a quarter turn where it has the bit 1: two selections, not four.
    half = torch.where(turn >= 2, x.flip(-1, -2), x)
    return torch.where(turn % 2 == 1, half.rot90(1, (-2, -1)), half), k


def _check(x: Tensor, generator: torch.Generator, *, image: bool = True) -> None:
    if not x.is_floating_point():
        raise InputError(f"x is {x.dtype}; wanted a floating-point tensor (divide bytes by 255).")
    if len(x.shape) < 1 or len(x) == 0:
        raise InputError(f"x has shape {tuple(x.shape)}; wanted at least one example.")
    if image and x.ndim != 4:
        raise InputError(f"x has shape {tuple(x.shape)}; wanted images [batch, channels, height, width].")
    # A generator made for "cuda" may carry no index: it then belongs to the current device.
    other = generator.device
    if other.type != x.device.type or (other.index is not None and other.index != x.device.index):
        raise InputError(
            f"the generator is on {other} and x on {x.device}; make it with torch.Generator({str(x.device)!r})."
        )
