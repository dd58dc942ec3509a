"""The discretised logistic mixture of PixelCNN++ (Salimans et al. 2017): the distribution of a pixel's channels.

A component is one logistic distribution for each channel. Its mean depends linearly on the channels before it (red,
then green, then blue). Each level has one of `levels` equal bins; the first and last bins extend to infinity. The
probability of a level is the mass of its bin, so the probabilities of a channel sum to one.

`most_likely` evaluates the same density for a few candidate levels of one pixel with as few GPU kernels as possible.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from soap.shapes import Float, Int, Tensor

MIN_LOG_SCALE = -7.0
"""A scale below a hundredth of a bin (of 256) gains nothing and overflows."""

MAX_LOG_SCALE = 40.0
"""Above this scale all bins but the first and last are empty, and the logarithm of their mass underflows."""


def parameters_per_pixel(channels: int, mixtures: int) -> int:
    """Return the number of mixture parameters for each pixel: weights, means, scales, couplings of channel pairs."""
    return mixtures * (1 + 2 * channels + channels * (channels - 1) // 2)


def centred(levels: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Map levels 0 .. count - 1 to the centres of `count` equal bins of [-1, 1]; 256 of them are exact in bf16."""
    return (levels - (count - 1) / 2).to(dtype) / (count / 2)


@dataclass(frozen=True, kw_only=True)
class LogisticMixture:
    """One mixture for each pixel over `levels` levels per channel. Values are `centred`; couplings in (-1, 1)."""

    levels: int
    log_weights: Float[Tensor, "batch mixtures *space"]
    means: Float[Tensor, "batch mixtures c *space"]
    log_scales: Float[Tensor, "batch mixtures c *space"]
    coupling: Float[Tensor, "batch mixtures pairs *space"]

    @classmethod
    def from_network(
        cls, raw: Float[Tensor, "batch parameters *space"], *, channels: int, mixtures: int, levels: int
    ) -> "LogisticMixture":
        """Build mixtures from raw network outputs, at least in single precision: bf16 is too coarse for likelihoods."""
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        pairs, (batch, _, *space) = channels * (channels - 1) // 2, raw.shape
        sizes = [mixtures, mixtures * channels, mixtures * channels, mixtures * pairs]
        weights, means, log_scales, coupling = torch.split(raw, sizes, 1)
        return cls(
            levels=levels,
            log_weights=weights.log_softmax(1),
            means=means.reshape(batch, mixtures, channels, *space),
            log_scales=log_scales.reshape(batch, mixtures, channels, *space).clamp(MIN_LOG_SCALE, MAX_LOG_SCALE),
            coupling=coupling.reshape(batch, mixtures, pairs, *space).tanh(),
        )

    def log_prob(self, x: Float[Tensor, "batch c *space"]) -> Float[Tensor, "batch *space"]:
        """Return the log-probability (nats) of each pixel over all its channels."""
        joint = self.log_weights
        for channel in range(x.shape[1]):
            joint = joint + self.component(channel, x[:, channel], x[:, :channel])
        return joint.logsumexp(1)

    def component(
        self, channel: int, value: Float[Tensor, "batch *values"], before: Float[Tensor, "batch earlier *space"]
    ) -> Float[Tensor, "batch mixtures *values"]:
        """Return the log-probability of a channel's value under each component, given the pixel's earlier channels.

        `value` may hold several candidates if the mixture covers a single pixel.
        """
        mean, first = self.means[:, :, channel], channel * (channel - 1) // 2
        for other in range(channel):
            mean = mean + self.coupling[:, :, first + other] * before[:, None, other]
        steepness = (-self.log_scales[:, :, channel]).exp()
        distance = value[:, None] - mean
        upper, lower = steepness * (distance + 1 / self.levels), steepness * (distance - 1 / self.levels)
        # sigmoid(u) - sigmoid(l) = sigmoid(u) sigmoid(-l) (1 - exp(l - u)): the logarithm of the product has
        # no cancellation. An edge bin extends to infinity, which leaves one factor.
        below_top = F.logsigmoid(upper)
        above_bottom = F.logsigmoid(-lower)
        inside = below_top + above_bottom + torch.log(-torch.expm1(-2 / self.levels * steepness))
        edge = 1 - 1.5 / self.levels  # between the centres of the last two bins
        edged = torch.where(value[:, None] > edge, above_bottom, inside)
        return torch.where(value[:, None] < -edge, below_top, edged)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Candidate levels of each channel and their bins.

    Everything that does not depend on the mixture is computed here, for many pixels at once.
    """

    levels: Int[Tensor, "batch *pixels c k"]
    values: Float[Tensor, "batch *pixels c k"]  # centred
    ends: Float[Tensor, "batch *pixels c 2 k"]  # upper and negated lower bin edge; infinite at the range's ends
    signs: Float[Tensor, "2 1"]  # sign of the mean in the distance to each edge
    inside: Float[Tensor, "batch *pixels c k"]  # 1 for a bin with two finite edges, else 0

    @classmethod
    def among(cls, levels: Int[Tensor, "batch *pixels c k"], count: int, dtype: torch.dtype) -> "Candidates":
        """Build candidates from integer levels 0 .. count - 1."""
        values = centred(levels, count, dtype)
        ends = torch.stack([values, -values], -2) + 1 / count
        return cls(
            levels=levels,
            values=values,
            ends=ends.masked_fill(ends > 1 - 0.5 / count, math.inf),
            signs=torch.linspace(-1, 1, 2, dtype=dtype, device=levels.device)[:, None],
            inside=((levels > 0) & (levels < count - 1)).to(dtype),
        )

    def at(self, column: int) -> "Candidates":
        """Return the candidates of one pixel of a row."""
        return Candidates(
            levels=self.levels[:, column],
            values=self.values[:, column],
            ends=self.ends[:, column],
            signs=self.signs,
            inside=self.inside[:, column],
        )


def most_likely(mixture: LogisticMixture, candidates: Candidates) -> Int[Tensor, "batch c"]:
    """Return the most likely candidate level of each channel of a pixel, given the levels chosen for earlier channels.

    Ties go to the first candidate.
    """
    joint = mixture.log_weights
    steepness = (-mixture.log_scales).exp()
    two_ended = torch.log(-torch.expm1(-2 / mixture.levels * steepness))
    best: list[Tensor] = []
    before: list[Tensor] = []
    for channel in range(candidates.values.shape[1]):
        mean, first = mixture.means[:, :, channel], channel * (channel - 1) // 2
        for other, value in enumerate(before):
            mean = torch.addcmul(mean, mixture.coupling[:, :, first + other], value)
        distance = torch.addcmul(candidates.ends[:, None, channel], mean[..., None], candidates.signs)
        below, above = F.logsigmoid(distance.mul_(steepness[:, :, channel, None])).unbind(2)
        parts = (below + above).addcmul_(two_ended[:, :, channel], candidates.inside[:, None, channel]).add_(joint)
        # Softmax over components and candidates together keeps the largest value far from underflow.
        probability = parts.flatten(1).softmax(1).view_as(parts).sum(1)
        best.append(probability.argmax(1, keepdim=True))
        if channel + 1 < candidates.values.shape[1]:
            before.append(candidates.values[:, channel].gather(1, best[-1])[:, None])
            # The likelihood of the channels so far weighs the components of the next channel.
            joint = parts.gather(2, best[-1][:, None].expand(-1, parts.shape[1], -1))
    return candidates.levels.gather(2, torch.stack(best, 1))[..., 0]
