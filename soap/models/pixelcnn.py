"""A PixelCNN++-style autoregressive model of images (Salimans et al. 2017).

Two streams of gated residual blocks predict each pixel. The `above` stream sees the rows above. The `left` stream sees
the pixels to the left in the same row and, through a link at every block, the `above` stream. Unlike the paper there is
no down-sampling, so activations can be cached for generation (`pixel_generation`), and no weight normalisation:
residual branches with small initial weights serve the same purpose.

A causal convolution sees, along one axis of the image, a position and the positions before it. It gives the same result
for a whole image as for successive slices with cached inputs. Training uses whole images, purification one row at a
time; `pixel_generation.RowDecoder` handles the pixels within a row.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from soap import validate
from soap.errors import InputError
from soap.models.logistic_mixture import LogisticMixture, centred, parameters_per_pixel
from soap.shapes import Float, Int, Tensor

MAX_LEVELS = 2**16

Cache = dict[nn.Module, Tensor]
"""Cached last inputs of each causal convolution; zeros before the first slice."""

DOWN, ACROSS = 2, 3
"""The axes of [batch, channels, height, width] along which a convolution may be causal."""

KERNEL_SIZES = {DOWN: (2, 3), ACROSS: (1, 3)}
"""Kernel (rows, columns): this row and the row above, one column on both sides; this pixel and two to its left."""


class CausalConv(nn.Conv2d):
    """Convolution that sees nothing after the current position along `axis`; zero padding outside the image."""

    bias: Tensor

    def __init__(self, before: int, after: int, *, axis: int) -> None:
        rows, columns = KERNEL_SIZES[axis]
        super().__init__(before, after, (rows, columns), padding=(0, columns // 2 if axis == DOWN else 0))
        self.axis = axis
        self.memory = KERNEL_SIZES[axis][axis - 2] - 1

    def forward(self, x: Float[Tensor, "batch c h w"], cache: Cache | None = None) -> Float[Tensor, "batch c2 h w"]:
        """Convolve a whole image or, with a `cache`, the slices that follow the cached ones."""
        if cache is None:
            x = F.pad(x, (0, 0, self.memory, 0) if self.axis == DOWN else (self.memory, 0, 0, 0))
        else:
            x = torch.cat([cache[self], x], self.axis)
            # A copy, because a view would keep all of x in memory.
            cache[self] = x.narrow(self.axis, x.shape[self.axis] - self.memory, self.memory).clone()
        return super().forward(x)

    def matrix(self) -> Float[Tensor, "c2 taps"]:
        """Return the weight as a matrix that multiplies the flattened pixels under the kernel."""
        return self.weight.permute(0, 2, 3, 1).flatten(1)


class GatedBlock(nn.Module):
    """x + a * sigmoid(b); a and b come from two convolutions with concatenated ELUs."""

    def __init__(self, channels: int, *, axis: int, dropout: float) -> None:
        super().__init__()
        self.first = CausalConv(2 * channels, channels, axis=axis)
        self.second = CausalConv(2 * channels, 2 * channels, axis=axis)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch c h w"],
        cache: Cache | None = None,
        link: Float[Tensor, "batch c h w"] | None = None,
    ) -> Float[Tensor, "batch c h w"]:
        """Return the block's output; `link` is added between the convolutions."""
        y = self.first(concat_elu(x), cache)
        y = y if link is None else y + link
        value, gate = self.second(self.dropout(concat_elu(y)), cache).chunk(2, 1)
        out: Tensor = x + value * gate.sigmoid()
        return out


def concat_elu(x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c2 h w"]:
    """Return ELU(x) and ELU(-x) concatenated: twice the channels."""
    return F.elu(torch.cat([x, -x], 1))


def shifted(x: Float[Tensor, "batch c h w"], axis: int) -> Float[Tensor, "batch c h w"]:
    """Return `x` shifted by one along `axis`, with a zero first: each position holds its predecessor."""
    before = F.pad(x, (0, 0, 1, 0) if axis == DOWN else (1, 0, 0, 0))
    return before.narrow(axis, 0, x.shape[axis])


class PixelCNN(nn.Module):
    """Log-likelihood of images [batch, c, h, w] in [0, 1], rounded to `levels` integer levels (8 bits: 256).

    inputs: shape (c, h, w) of an image. channels: width of both streams. blocks: depth of each stream; a pixel sees
    2 * blocks + 2 rows up and 4 * blocks + 3 columns to the left. mixtures: logistic components. dropout: dropout rate
    of every block. 128 channels and 8 blocks have 7.4 M parameters.
    """

    recordable: bool = True  # no operation waits for the host, so a CUDA graph can replay it

    def __init__(
        self,
        *,
        inputs: tuple[int, ...] = (3, 32, 32),
        channels: int = 128,
        blocks: int = 8,
        mixtures: int = 10,
        dropout: float = 0.0,
        levels: int = 256,
    ) -> None:
        super().__init__()
        if len(inputs) != 3:
            raise InputError(f"inputs is {inputs!r}; expected the shape of an image: (channels, height, width).")
        for name, value, least in (
            *(("each of inputs", side, 1) for side in inputs),
            ("channels", channels, 1),
            ("blocks", blocks, 1),
            ("mixtures", mixtures, 1),
            ("levels", levels, 2),
        ):
            validate.at_least(name, value, least)
        if levels > MAX_LEVELS:
            raise InputError(f"levels is {levels}; expected at most {MAX_LEVELS} (16 bits).")
        validate.below_one("dropout", dropout)
        self.input_shape, self.levels, self.mixtures = tuple(inputs), levels, mixtures
        self.channels, self.dropout = channels, dropout
        seen = inputs[0] + 1  # the image, and a channel of ones that marks the inside against the zero padding
        self.enter_above = CausalConv(seen, channels, axis=DOWN)
        self.enter_left = CausalConv(seen, channels, axis=ACROSS)
        self.above = nn.ModuleList(GatedBlock(channels, axis=DOWN, dropout=dropout) for _ in range(blocks))
        self.links = nn.ModuleList(nn.Conv2d(2 * channels, channels, 1) for _ in range(blocks))
        self.left = nn.ModuleList(GatedBlock(channels, axis=ACROSS, dropout=dropout) for _ in range(blocks))
        self.head = nn.Conv2d(2 * channels, parameters_per_pixel(inputs[0], mixtures), 1)
        self._initialise()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.no_grad()
    def _initialise(self) -> None:
        """Initialise the weights.

        Convolutions keep unit variance. Residual branches start small, so that depth does not add up. Means are spread
        over the levels, so that the components differ from the start.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=1 / math.sqrt(math.prod(module.weight.shape[1:])))
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        for module in self.modules():
            if isinstance(module, GatedBlock):
                module.second.weight.mul_(1 / math.sqrt(len(self.above)))
        self.head.weight.mul_(0.1)
        means = slice(self.mixtures, self.mixtures * (1 + self.input_shape[0]))
        spread = torch.linspace(-1, 1, self.mixtures + 2)[1:-1]
        self.head.bias[means] = spread.repeat_interleave(self.input_shape[0])  # type: ignore[index]
        self.head.bias[means.stop : means.stop + self.mixtures * self.input_shape[0]] = -1.5  # type: ignore[index]

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """Return the log-probability (nats) of each image rounded to levels; it has no gradient with respect to `x`."""
        mixture = self.mixture(self.raw(x))
        image = centred(self.levels_of(x), self.levels, mixture.means.dtype)
        return mixture.log_prob(image).sum((1, 2))

    def bits_per_dim(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """Return bits per dimension, the usual measure; 8 is a uniform distribution over 256 levels."""
        nats: Tensor = self(x)
        return nats / (-math.log(2) * math.prod(self.input_shape))

    def raw(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch parameters h w"]:
        """Return the raw mixture parameters of every pixel, computed from the pixels before it."""
        image = self.network_input(self.levels_of(x)).contiguous(memory_format=torch.channels_last)
        links = self.above_stream(shifted(image, DOWN))
        return self.left_stream(shifted(image, ACROSS), links)

    def above_stream(self, rows: Float[Tensor, "batch seen h w"], cache: Cache | None = None) -> list[Tensor]:
        """Return the links to each block of the `left` stream; `rows` are shifted down by one."""
        stream, links = self.enter_above(rows, cache), []
        for block, link in zip(self.above, self.links, strict=True):
            stream = block(stream, cache)
            links.append(link(concat_elu(stream)))
        return links

    def left_stream(
        self, pixels: Float[Tensor, "batch seen h w"], links: list[Tensor]
    ) -> Float[Tensor, "batch parameters h w"]:
        """Return the raw mixture parameters; `pixels` are shifted right by one."""
        stream = self.enter_left(pixels)
        for block, link in zip(self.left, links, strict=True):
            stream = block(stream, link=link)
        raw: Tensor = self.head(concat_elu(stream))
        return raw

    def mixture(self, raw: Float[Tensor, "batch parameters *space"]) -> LogisticMixture:
        """Return the distribution with these raw parameters."""
        return LogisticMixture.from_network(
            raw, channels=self.input_shape[0], mixtures=self.mixtures, levels=self.levels
        )

    def levels_of(self, x: Float[Tensor, "batch c h w"]) -> Int[Tensor, "batch c h w"]:
        """Round an image in [0, 1] to the nearest integer levels 0 .. levels - 1."""
        return (x * (self.levels - 1)).round().long()

    def network_input(self, levels: Int[Tensor, "batch c h w"]) -> Float[Tensor, "batch seen h w"]:
        """Return the network's input for these levels: centred, with a channel of ones."""
        image = centred(levels, self.levels, self.head.weight.dtype)
        return torch.cat([image, torch.ones_like(image[:, :1])], 1)
