"""Denoising diffusion probabilistic model (Ho et al. 2020) for small images, used by DiffPure, and its U-Net.

x_0 is an image, scaled to [-1, 1]. x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) e, with e ~ N(0, I), is almost pure noise
at the last step t = T. The network predicts e from x_t and t, and with it the steps run backwards.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from soap import validate
from soap.errors import InputError
from soap.models.image_networks import PurifierNetwork
from soap.shapes import Float, Int, Tensor

GROUPS = 8
"""Groups of every group norm; the width is a multiple of it."""

LONGEST_PERIOD = 10_000.0
"""Of the sinusoids that encode the time, as in Vaswani et al. 2017."""


class DDPM(PurifierNetwork):
    """`model(x_t, t)` predicts the noise e in x_t [batch, c, h, w] for steps `t` [batch] in 1 ... T.

    inputs, width, multipliers, blocks, patch: of the `UNet`. The defaults have 1.0 M parameters, 4.1 MB, for digits.
    steps: T; the variances beta_1 ... beta_T of the steps are equally spaced from `first_beta` to `last_beta`.
    """

    name = "ddpm"
    abar: Tensor

    def __init__(
        self,
        *,
        inputs: tuple[int, ...] = (1, 28, 28),
        width: int = 40,
        multipliers: tuple[int, ...] = (1, 2),
        blocks: int = 1,
        patch: int = 2,
        steps: int = 1000,
        first_beta: float = 1e-4,
        last_beta: float = 0.02,
    ) -> None:
        super().__init__()
        validate.at_least("steps (T)", steps, 2)
        if not 0 < first_beta <= last_beta < 1:
            raise InputError(f"betas are {first_beta} to {last_beta}, expected 0 < first_beta <= last_beta < 1.")
        self.input_shape, self.steps = tuple(inputs), steps
        self.network = UNet(inputs=inputs, width=width, multipliers=multipliers, blocks=blocks, patch=patch)
        betas = torch.linspace(first_beta, last_beta, steps, dtype=torch.float64)
        abar = torch.cat([betas.new_ones(1), (1 - betas).cumprod(0)])  # abar[t], t = 0 ... T
        self.register_buffer("abar", abar.float(), persistent=False)

    def forward(self, x: Float[Tensor, "batch c h w"], t: Int[Tensor, "batch"]) -> Float[Tensor, "batch c h w"]:
        """Return the predicted noise of every x_t."""
        noise: Tensor = self.network(x, t.to(x.dtype))
        return noise

    def noised(
        self, x: Float[Tensor, "batch c h w"], t: Int[Tensor, "batch"], noise: Float[Tensor, "batch c h w"]
    ) -> Float[Tensor, "batch c h w"]:
        """Return x_t of images x_0 in [-1, 1] for the given noise."""
        abar = self._abar(t, x)
        return abar.sqrt() * x + (1 - abar).sqrt() * noise

    def reverse_step(
        self,
        x: Float[Tensor, "batch c h w"],
        t: Int[Tensor, "batch"],
        s: Int[Tensor, "batch"],
        noise: Float[Tensor, "batch c h w"],
    ) -> Float[Tensor, "batch c h w"]:
        """Return x_s, drawn with `noise` from the model's distribution given x_t, for s < t.

        It is q(x_s | x_t, x_0) with the predicted x_0 = (x_t - sqrt(1 - abar_t) e) / sqrt(abar_t), not clipped.
        With s = t - 1 this is the sampler of Ho et al.; longer steps are those of Nichol & Dhariwal 2021.
        """
        abar = self._abar(t, x)
        start = (x - (1 - abar).sqrt() * self(x, t)) / abar.sqrt()
        mean, variance = self.posterior(x, start, t, s)
        return mean + variance.sqrt() * noise

    def posterior(
        self,
        x: Float[Tensor, "batch c h w"],
        start: Float[Tensor, "batch c h w"],
        t: Int[Tensor, "batch"],
        s: Int[Tensor, "batch"],
    ) -> tuple[Float[Tensor, "batch c h w"], Float[Tensor, "batch 1 1 1"]]:
        """Return mean and variance of q(x_s | x_t, x_0) for s < t; `start` is x_0. For s = 0 they are x_0 and 0."""
        now, then = self._abar(t, x), self._abar(s, x)
        alpha = now / then  # product of 1 - beta over the steps s + 1 ... t
        mean = (then.sqrt() * (1 - alpha) * start + alpha.sqrt() * (1 - then) * x) / (1 - now)
        return mean, (1 - alpha) * (1 - then) / (1 - now)

    @torch.no_grad()
    def sample(self, count: int, *, steps: int = 100, generator: torch.Generator) -> Float[Tensor, "count c h w"]:
        """Return `count` new images in [0, 1], by `steps` reverse steps from noise drawn on the generator's device."""

        def draw() -> Tensor:
            return torch.randn(count, *self.input_shape, generator=generator, device=generator.device).to(self.abar)

        x = draw()
        times = reverse_times(self.steps, steps)
        for t, s in pairwise(times):
            now, then = (torch.full((count,), time, device=x.device) for time in (t, s))
            x = self.reverse_step(x, now, then, draw())
        return to_unit(x)

    def _abar(self, t: Tensor, x: Tensor) -> Tensor:
        return self.abar[t].to(x.dtype).reshape(-1, 1, 1, 1)


def reverse_times(last: int, steps: int) -> Sequence[int]:
    """Return `steps` + 1 equally spaced times, rounded, from `last` down to 0."""
    if not 1 <= steps <= last:
        raise InputError(f"steps is {steps}, expected at least 1 and at most {last}, the number of noise steps.")
    return [round(last * (steps - k) / steps) for k in range(steps + 1)]


def to_signed(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Scale images from [0, 1] to [-1, 1]."""
    return 2 * x - 1


def to_unit(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Scale images from [-1, 1] to [0, 1] and clip them to it."""
    return ((x + 1) / 2).clamp(0, 1)


class UNet(nn.Module):
    """f(x, t): an output of the shape of `x` [batch, c, h, w] for times `t` [batch], which need not be whole numbers.

    inputs: shape (c, h, w) of an image. patch: pixels of a patch's side become channels, which divides the cost by
    patch^2. width: channels of the first level; the others have its `multipliers`, at half the side each.
    blocks: residual blocks of a level. The coarsest level has self-attention.
    """

    def __init__(
        self,
        *,
        inputs: tuple[int, ...],
        width: int,
        multipliers: tuple[int, ...] = (1, 2),
        blocks: int = 1,
        patch: int = 2,
    ) -> None:
        super().__init__()
        _check_sizes(inputs, width, multipliers, blocks, patch)
        self.width, self.patch = width, patch
        embedding, channels = 4 * width, [width * factor for factor in multipliers]
        self.time = nn.Sequential(nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding), nn.SiLU())
        self.enter = nn.Conv2d(inputs[0] * patch**2, width, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        here, skips = width, [width]
        for level, wide in enumerate(channels):
            entering = [here] + [wide] * (blocks - 1)
            self.down.append(nn.ModuleList(TimedBlock(n, wide, embedding) for n in entering))
            skips += [wide] * blocks
            here = wide
            if level + 1 < len(channels):
                self.shrink.append(nn.Conv2d(here, here, 3, stride=2, padding=1))
                skips.append(here)
        self.middle = nn.ModuleList([TimedBlock(here, here, embedding), TimedBlock(here, here, embedding)])
        self.attention = SelfAttention(here)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level, wide in reversed(list(enumerate(channels))):
            entering = [(here if k == 0 else wide) + skips.pop() for k in range(blocks + 1)]
            self.up.append(nn.ModuleList(TimedBlock(n, wide, embedding) for n in entering))
            here = wide
            if level:
                self.grow.append(nn.Conv2d(here, here, 3, padding=1))
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, here), nn.SiLU(), nn.Conv2d(here, inputs[0] * patch**2, 3, padding=1)
        )
        nn.init.zeros_(self.leave[2].weight)  # type: ignore[arg-type]
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Float[Tensor, "batch c h w"], t: Float[Tensor, "batch"]) -> Float[Tensor, "batch c h w"]:
        """Return the output for every image and its time."""
        time = self.time(sinusoids(t, self.width).to(x.dtype))
        h = self.enter(F.pixel_unshuffle(x, self.patch).contiguous(memory_format=torch.channels_last))
        skips = [h]
        for level, stage in enumerate(self.down):
            for block in stage:  # type: ignore[attr-defined]
                h = block(h, time)
                skips.append(h)
            if level < len(self.shrink):
                h = self.shrink[level](h)
                skips.append(h)
        first, second = self.middle
        h = second(self.attention(first(h, time)), time)
        for level, stage in enumerate(self.up):
            for block in stage:  # type: ignore[attr-defined]
                h = block(torch.cat([h, skips.pop()], 1), time)
            if level < len(self.grow):
                h = self.grow[level](F.interpolate(h, scale_factor=2.0, mode="nearest"))
        return F.pixel_shuffle(self.leave(h), self.patch)


class TimedBlock(nn.Module):
    """Two convolutions with group norms and a residual connection; the time is added between them.

    The second convolution starts at zero, so that every block starts as its residual connection.
    """

    def __init__(self, entering: int, leaving: int, embedding: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(GROUPS, entering), nn.SiLU(), nn.Conv2d(entering, leaving, 3, padding=1)
        )
        self.time = nn.Linear(embedding, leaving)
        self.second = nn.Sequential(nn.GroupNorm(GROUPS, leaving), nn.SiLU(), nn.Conv2d(leaving, leaving, 3, padding=1))
        self.skip = nn.Identity() if entering == leaving else nn.Conv2d(entering, leaving, 1)
        nn.init.zeros_(self.second[2].weight)  # type: ignore[arg-type]

    def forward(self, h: Float[Tensor, "batch c h w"], time: Float[Tensor, "batch e"]) -> Float[Tensor, "batch d h w"]:
        """Return the block's output."""
        out: Tensor = self.skip(h) + self.second(self.first(h) + self.time(time)[:, :, None, None])
        return out


class SelfAttention(nn.Module):
    """One head of self-attention over all positions, with a residual connection; it starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.queries_keys_values = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, h: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Return the block's output."""
        q, k, v = self.queries_keys_values(self.norm(h)).flatten(2).transpose(1, 2).chunk(3, 2)
        # Written out: the fused kernels differ between devices, and there are at most 64 positions.
        mixed = (q @ k.transpose(1, 2) / math.sqrt(q.shape[2])).softmax(2) @ v
        residual: Tensor = self.out(mixed.transpose(1, 2).reshape(h.shape))
        return h + residual


def sinusoids(t: Float[Tensor, "batch"], width: int) -> Float[Tensor, "batch width"]:
    """Return sines and cosines of the times, with periods from 2 pi to `LONGEST_PERIOD` * 2 pi."""
    half = width // 2
    frequencies = LONGEST_PERIOD ** (-torch.arange(half, device=t.device, dtype=t.dtype) / half)
    angles = t[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def _check_sizes(inputs: tuple[int, ...], width: int, multipliers: tuple[int, ...], blocks: int, patch: int) -> None:
    sizes = {"width": width, "blocks": blocks, "patch": patch}
    for name, value in (*sizes.items(), *(("multiplier", factor) for factor in multipliers)):
        validate.at_least(name, value, 1)
    if width % GROUPS:
        raise InputError(f"width is {width}, expected a multiple of {GROUPS}, the number of groups of its norms.")
    side = patch * 2 ** (len(multipliers) - 1)
    if not multipliers or len(inputs) != 3 or inputs[0] < 1 or any(n < side or n % side for n in inputs[1:]):
        raise InputError(
            f"inputs is {list(inputs)} with {len(multipliers)} multipliers and patch {patch}; expected at least one "
            f"multiplier, and channels, height and width, both sides multiples of {side}."
        )
