"""Data augmentation of whole batches on their device, with random numbers from a `torch.Generator`.

Each image has its own random numbers, without a loop over images. The same seed gives the same batch.
"""

import math

import torch

from soap._runtime import distributed
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor


def random_crop(
    x: Float[Tensor, "batch channels height width"], padding: int, generator: torch.Generator
) -> Float[Tensor, "batch channels height width"]:
    """Shift each image by up to `padding` pixels in each direction; new pixels are 0 (black)."""
    _check(x, generator)
    if padding < 0:
        raise InputError(f"padding is {padding}; expected 0 or more pixels.")
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


def random_affine(
    x: Float[Tensor, "batch channels height width"], amount: float, generator: torch.Generator
) -> Float[Tensor, "batch channels height width"]:
    """Turn, scale and shear each image about its centre by bicubic interpolation; new pixels are 0 (black).

    amount: largest angle in radians, and largest change of scale and of shear; all three are uniform within it. The
    result is clipped to [0, 1], because bicubic interpolation overshoots at edges.
    """
    _check(x, generator)
    if not 0 <= amount < 1:
        raise InputError(f"amount is {amount}; expected 0 or more, and less than 1.")
    batch, _, height, width = x.shape
    drawn = torch.rand(3, batch, generator=generator, device=x.device, dtype=x.dtype)
    angle, change, shear = amount * (2 * drawn - 1)
    cos, sin = (1 + change) * angle.cos(), (1 + change) * angle.sin()
    zero = torch.zeros_like(cos)
    # From output to input positions, in units of half the width and half the height.
    rows = (cos, (shear - sin) * height / width, zero, sin * width / height, cos, zero)
    matrix = torch.stack(rows, 1).reshape(batch, 2, 3)
    grid = torch.nn.functional.affine_grid(matrix, list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(x, grid, mode="bicubic", align_corners=False).clamp(0, 1)


def gaussian_noise(
    x: Float[Tensor, "batch *shape"],
    sigma: float,
    generator: torch.Generator,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Float[Tensor, "batch *shape"]:
    """Add independent N(0, sigma^2) to every value, then clip to `clip` (None: do not clip)."""
    _check(x, generator, image=False)
    if not (math.isfinite(sigma) and sigma >= 0):
        raise InputError(f"sigma is {sigma}; expected a finite number, 0 or more.")
    if clip is not None and not clip[0] < clip[1]:
        raise InputError(f"clip is {clip}; expected (low, high) with low < high, or None.")
    noisy = distributed.normal_like(x, generator).mul_(sigma).add_(x)
    return noisy if clip is None else noisy.clamp_(*clip)


def random_rotation(
    x: Float[Tensor, "batch channels side side"], generator: torch.Generator
) -> tuple[Float[Tensor, "batch channels side side"], Int[Tensor, " batch"]]:
    """Turn each square image by k quarter turns anticlockwise, k uniform in {0, 1, 2, 3}; returns (x, k)."""
    _check(x, generator)
    if x.shape[-1] != x.shape[-2]:
        raise InputError(f"images are {x.shape[-2]} x {x.shape[-1]}; expected square ones to turn by 90 degrees.")
    k = torch.randint(4, (len(x),), generator=generator, device=x.device)
    turn = k[:, None, None, None]
    # Bit 2 of k is a half turn, bit 1 a quarter turn: two selections instead of four.
    half = torch.where(turn >= 2, x.flip(-1, -2), x)
    return torch.where(turn % 2 == 1, half.rot90(1, (-2, -1)), half), k


def _check(x: Tensor, generator: torch.Generator, *, image: bool = True) -> None:
    if not x.is_floating_point():
        raise InputError(f"x is {x.dtype}; expected a floating-point tensor (divide bytes by 255).")
    if len(x.shape) < 1 or len(x) == 0:
        raise InputError(f"x has shape {tuple(x.shape)}; expected at least one example.")
    if image and x.ndim != 4:
        raise InputError(f"x has shape {tuple(x.shape)}; expected images [batch, channels, height, width].")
    # A generator for "cuda" may have no index and then belongs to the current device.
    device = generator.device
    if device.type != x.device.type or (device.index is not None and device.index != x.device.index):
        raise InputError(
            f"the generator is on {device} and x on {x.device}; make it with torch.Generator({str(x.device)!r})."
        )
