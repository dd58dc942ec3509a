"""The discretised logistic mixture of PixelCNN++ (Salimans et al. 2017): what a pixel's channels may be.

A component is a logistic distribution a channel, its mean moved linearly by the channels before it (red, then green,
then blue). The line is cut into equal bins, one a level, the first and the last reaching to infinity, and a level's
probability is the mass in its bin: exact, edges included, so that all levels of a channel sum to one.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from soap.shapes import Float, Tensor

LEAST_LOG_SCALE = -7.0
"""Narrower than a hundredth of a bin (of 256) gains nothing, and overflows."""

MOST_LOG_SCALE = 40.0
"""Wider, all bins but the first and the last are empty anyway, and the logarithm of their mass is lost to underflow."""


def parameters_per_pixel(channels: int, mixtures: int) -> int:
    """How many numbers a pixel's mixture takes: weights, means, scales and the couplings of channel pairs."""
    return mixtures * (1 + 2 * channels + channels * (channels - 1) // 2)


def centred(levels: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Levels 0 .. count - 1 as the middles of `count` equal bins that tile [-1, 1]; 256 of them are exact in bf16."""
    return (levels - (count - 1) / 2).to(dtype) / (count / 2)


@dataclass(frozen=True, kw_only=True)
class LogisticMixture:
    """One mixture a pixel, of `levels` levels a channel. Values are `centred`; couplings lie in (-1, 1)."""

    levels: int
    log_weights: Float[Tensor, "batch mixtures *space"]
    means: Float[Tensor, "batch mixtures c *space"]
    log_scales: Float[Tensor, "batch mixtures c *space"]
    coupling: Float[Tensor, "batch mixtures pairs *space"]

    @classmethod
    def from_network(
        cls, raw: Float[Tensor, "batch numbers *space"], *, channels: int, mixtures: int, levels: int
    ) -> "LogisticMixture":
        """From a network's unbounded outputs, in single precision at least: bf16 is too coarse for likelihoods."""
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        pairs, (batch, _, *space) = channels * (channels - 1) // 2, raw.shape
        sizes = [mixtures, mixtures * channels, mixtures * channels, mixtures * pairs]
        weights, means, log_scales, coupling = torch.split(raw, sizes, 1)
        return cls(
            levels=levels,
            log_weights=weights.log_softmax(1),
            means=means.reshape(batch, mixtures, channels, *space),
            log_scales=log_scales.reshape(batch, mixtures, channels, *space).clamp(LEAST_LOG_SCALE, MOST_LOG_SCALE),
            coupling=coupling.reshape(batch, mixtures, pairs, *space).tanh(),
        )

    def log_prob(self, x: Float[Tensor, "batch c *space"]) -> Float[Tensor, "batch *space"]:
        """Log-probability (nats) of pixels with all their channels."""
        joint = self.log_weights
        for channel in range(x.shape[1]):
            joint = joint + self.component(channel, x[:, channel], x[:, :channel])
        return joint.logsumexp(1)

    def component(
        self, channel: int, value: Float[Tensor, "batch *values"], before: Float[Tensor, "batch earlier *space"]
    ) -> Float[Tensor, "batch mixtures *values"]:
        """Log-probability under each component of a channel's value, given the pixel's channels before it.

        `value` may hold several candidates where the mixture's space is a single place.
        """
        mean, first = self.means[:, :, channel], channel * (channel - 1) // 2
        for other in range(channel):
            mean = mean + self.coupling[:, :, first + other] * before[:, None, other]
        steepness = (-self.log_scales[:, :, channel]).exp()
        distance = value[:, None] - mean
        upper, lower = steepness * (distance + 1 / self.levels), steepness * (distance - 1 / self.levels)
        # sigmoid(u) - sigmoid(l) = sigmoid(u) sigmoid(-l) (1 - exp(l - u)): a product has a logarithm without
        # cancellation. An edge bin reaches to infinity, which leaves one factor.
        below_top = F.logsigmoid(upper)
        above_bottom = F.logsigmoid(-lower)
        inside = below_top + above_bottom + torch.log(-torch.expm1(-2 / self.levels * steepness))
        edge = 1 - 1.5 / self.levels  # between the last middle but one and the last
        edged = torch.where(value[:, None] > edge, above_bottom, inside)
        return torch.where(value[:, None] < -edge, below_top, edged)
