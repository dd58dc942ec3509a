"""The most likely of a pixel's candidate levels under a logistic mixture, in as few kernels as will do.

It is `LogisticMixture.component` once more, for a walk from pixel to pixel that takes no gradient: what does not depend
on the mixture is computed for many pixels at once.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from soap.models.logistic_mixture import LogisticMixture, centred
from soap.shapes import Float, Int, Tensor


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Levels to choose from, of every channel, with their bins."""

    levels: Int[Tensor, "batch *pixels c k"]
    values: Float[Tensor, "batch *pixels c k"]  # centred
    ends: Float[Tensor, "batch *pixels c 2 k"]  # of the bin, the upper and the negated lower; infinite beyond an edge
    signs: Float[Tensor, "2 1"]  # with which a mean moves away from either end
    inside: Float[Tensor, "batch *pixels c k"]  # 1 for a bin with two ends, 0 for one at an edge

    @classmethod
    def among(cls, levels: Int[Tensor, "batch *pixels c k"], count: int, dtype: torch.dtype) -> "Candidates":
        """From whole levels 0 .. count - 1."""
        values = centred(levels, count, dtype)
        ends = torch.stack([values, -values], -2) + 1 / count
        return cls(
            levels=levels,
            values=values,
            ends=ends.masked_fill(ends > 1 - 0.5 / count, math.inf),
            signs=torch.linspace(-1, 1, 2, dtype=dtype, device=levels.device)[:, None],
            inside=((levels > 0) & (levels < count - 1)).to(dtype),
        )

    def at(self, place: int) -> "Candidates":
        """Those of one pixel of a row."""
        return Candidates(
            levels=self.levels[:, place],
            values=self.values[:, place],
            ends=self.ends[:, place],
            signs=self.signs,
            inside=self.inside[:, place],
        )


def most_likely(mixture: LogisticMixture, candidates: Candidates) -> Int[Tensor, "batch c"]:
    """For a pixel, channel after channel, the first of its most likely candidate levels, given those chosen before."""
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
        # Of component and candidate together, so that the largest is far from underflow.
        probability = parts.flatten(1).softmax(1).view_as(parts).sum(1)
        best.append(probability.argmax(1, keepdim=True))
        if channel + 1 < candidates.values.shape[1]:
            before.append(candidates.values[:, channel].gather(1, best[-1])[:, None])
            # What the components say of the channels so far weighs them for the next.
            joint = parts.gather(2, best[-1][:, None].expand(-1, parts.shape[1], -1))
    return candidates.levels.gather(2, torch.stack(best, 1))[..., 0]
