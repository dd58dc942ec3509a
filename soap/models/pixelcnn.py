"""A PixelCNN++-style model of images (Salimans et al. 2017): every pixel given those above it and to its left.

Two streams of gated residual blocks: one sees the rows above, the other the pixels to the left in the same row and,
linked in at every block, the first. There is no down-sampling as in the paper: reach comes from depth, and a pixel's
activations can be remembered simply (`pixel_walk`). Nor is there weight normalisation, whose work residual branches
that start small do at no cost.
"""

import math

import torch
from torch import nn

from soap import validate
from soap.errors import InputError
from soap.models.causal import ACROSS, DOWN, CausalConv, GatedBlock, Past, concat_elu, shifted
from soap.models.logistic_mixture import LogisticMixture, centred, parameters_per_pixel
from soap.shapes import Float, Int, Tensor

MOST_LEVELS = 2**16


class PixelCNN(nn.Module):
    """Likelihood of images [batch, c, h, w] in [0, 1], taken as whole `levels` (8 bits: 256).

    inputs: shape (c, h, w) of an image. channels: width of both streams. blocks: depth of each; a pixel sees
    2 blocks + 2 rows up and 4 blocks + 3 columns to the left. mixtures: logistic components. dropout: share of the
    activations dropped in every block in training mode. 128 channels and 8 blocks have 7.4 M parameters.
    """

    recordable: bool = True  # nothing here waits for the host, so a GPU may replay it

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
            raise InputError(f"inputs is {inputs!r}, want the shape of an image: (channels, height, width).")
        for name, value, least in (
            *(("each of inputs", side, 1) for side in inputs),
            ("channels", channels, 1),
            ("blocks", blocks, 1),
            ("mixtures", mixtures, 1),
            ("levels", levels, 2),
        ):
            validate.at_least(name, value, least)
        if levels > MOST_LEVELS:
            raise InputError(f"levels is {levels}, want at most {MOST_LEVELS}: 16 bits a value.")
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout!r}, want a share of at least 0 and below 1.")
        self.input_shape, self.levels, self.mixtures = tuple(inputs), levels, mixtures
        self.channels, self.dropout = channels, dropout
        seen = inputs[0] + 1  # the image, and a channel of ones that tells the inside from the zeros around
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
        """Unit variance through each convolution; residual branches small, so that depth does not add up at first;
        means spread over the levels, so that components part at once."""
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
        """Log-probability (nats) of every image, rounded to whole levels; it has no gradient with respect to `x`."""
        mixture = self.mixture(self.raw(x))
        image = centred(self.levels_of(x), self.levels, mixture.means.dtype)
        return mixture.log_prob(image).sum((1, 2))

    def log_prob(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """The model's own call by its name in mathematics."""
        log_prob: Tensor = self(x)
        return log_prob

    def bits_per_dim(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """Bits that a channel of a pixel takes on average to write down, the usual measure; 8 is no knowledge."""
        return self.log_prob(x) / (-math.log(2) * math.prod(self.input_shape))

    def raw(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch numbers h w"]:
        """The raw numbers of every pixel's mixture, from the pixels before it alone."""
        image = self.entering(self.levels_of(x)).contiguous(memory_format=torch.channels_last)
        links = self.look_above(shifted(image, DOWN))
        return self.look_left(shifted(image, ACROSS), links)

    def look_above(self, rows: Float[Tensor, "batch seen h w"], past: Past | None = None) -> list[Tensor]:
        """What the rows above say to each block of the other stream; `rows` are those before the rows asked for."""
        stream, links = self.enter_above(rows, past), []
        for block, link in zip(self.above, self.links, strict=True):
            stream = block(stream, past)
            links.append(link(concat_elu(stream)))
        return links

    def look_left(
        self, pixels: Float[Tensor, "batch seen h w"], links: list[Tensor]
    ) -> Float[Tensor, "batch numbers h w"]:
        """The mixtures' raw numbers; `pixels` are those to the left of the pixels asked for."""
        stream = self.enter_left(pixels)
        for block, link in zip(self.left, links, strict=True):
            stream = block(stream, link=link)
        raw: Tensor = self.head(concat_elu(stream))
        return raw

    def mixture(self, raw: Float[Tensor, "batch numbers *space"]) -> LogisticMixture:
        """The distribution that raw numbers stand for."""
        return LogisticMixture.from_network(
            raw, channels=self.input_shape[0], mixtures=self.mixtures, levels=self.levels
        )

    def levels_of(self, x: Float[Tensor, "batch c h w"]) -> Int[Tensor, "batch c h w"]:
        """The nearest whole levels 0 .. levels - 1 of an image in [0, 1]."""
        return (x * (self.levels - 1)).round().long()

    def entering(self, levels: Int[Tensor, "batch c h w"]) -> Float[Tensor, "batch seen h w"]:
        """Levels as the network takes them in: centred, with a channel of ones."""
        image = centred(levels, self.levels, self.head.weight.dtype)
        return torch.cat([image, torch.ones_like(image[:, :1])], 1)
