"""Randomised smoothing (Cohen et al. 2019): classify many noisy copies of an image, with a certified L2 radius.

The smoothed classifier returns the class that the classifier predicts most often for x + N(0, sigma^2 I). If that class
has probability at least p > 1/2, no perturbation of L2 norm below sigma * Phi^-1(p) changes it. `certify` bounds p from
below by Clopper & Pearson, so each certificate is wrong with probability at most `alpha`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import frozen
from soap.errors import InputError
from soap.purifiers.purifier import ClassifierWrapper
from soap.shapes import Float, Int, Tensor

BISECTIONS = 60
"""Halvings of [0, 1]: more than the 53 bits of a float64."""


@dataclass(frozen=True, kw_only=True)
class Certified:
    """Labels of the smoothed classifier and their L2 radii, per sample; an abstention has radius 0 and no valid label.

    probability: the lower bound on the probability of the label under noise.
    """

    labels: Int[Tensor, "batch"]
    radius: Float[Tensor, "batch"]
    abstained: Tensor
    probability: Float[Tensor, "batch"]


class Smoothing(ClassifierWrapper):
    """`Smoothing(classifier)(x)` is the log of the mean probabilities over `draws` noisy copies of `x`.

    This soft vote is differentiable (Salman et al. 2019). `labels` and `certify` are the hard vote of Cohen et al.
    sigma: standard deviation of the noise; noisy copies are not clipped.
    generator: of the noise, on the device of the images. None draws from torch's global generator, as dropout does:
    every call draws anew, and `torch.manual_seed` repeats a call.
    """

    random = True
    setting_names = ("sigma", "draws")

    def __init__(
        self,
        classifier: nn.Module,
        *,
        sigma: float = 0.25,
        draws: int = 16,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(classifier)
        validate.positive("sigma", sigma)
        validate.at_least("draws", draws, 1)
        self.sigma, self.draws, self.generator = sigma, draws, generator

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the log of the mean probabilities."""
        logs = torch.stack([self.classifier(self._noisy(x)).log_softmax(1) for _ in range(self.draws)])
        return logs.logsumexp(0) - math.log(self.draws)

    def votes(self, x: Float[Tensor, "batch *shape"], draws: int) -> Int[Tensor, "batch classes"]:
        """Return how often each class is predicted in `draws` noisy copies of each image."""
        validate.inputs(x, self.classifier)
        validate.at_least("draws", draws, 1)
        counts: Tensor | None = None
        with frozen(self.classifier), torch.no_grad():
            for _ in range(draws):
                logits = self.classifier(self._noisy(x))
                hits = nn.functional.one_hot(logits.argmax(1), logits.shape[1])
                counts = hits if counts is None else counts + hits
        assert counts is not None
        return counts

    def labels(self, x: Float[Tensor, "batch *shape"], *, draws: int = 100, alpha: float = 0.001) -> Certified:
        """Return the predicted labels (PREDICT of Cohen et al.), without radii.

        It abstains where a two-sided test cannot tell the two most frequent classes apart: a label is not that of the
        exact vote with probability at most `alpha`.
        """
        _check_alpha(alpha)
        counts, order = self.votes(x, draws).sort(1, descending=True)
        pairs = [(int(row[0]), int(row[0] + row[1])) for row in counts.cpu()]
        unsure = [min(1.0, 2 * binomial_tail(k, n, 0.5)) > alpha for k, n in pairs]
        zeros = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        abstained = torch.tensor(unsure, device=x.device)
        return Certified(labels=order[:, 0], radius=zeros, abstained=abstained, probability=zeros)

    def certify(
        self, x: Float[Tensor, "batch *shape"], *, choose_draws: int = 100, draws: int = 1000, alpha: float = 0.001
    ) -> Certified:
        """Return labels with certified L2 radii (CERTIFY of Cohen et al.).

        The label is the most frequent class of `choose_draws` draws; the bound on its probability comes from `draws`
        others. The largest possible radius is sigma * Phi^-1(alpha^(1 / draws)).
        """
        _check_alpha(alpha)
        chosen = self.votes(x, choose_draws).argmax(1)
        counts = self.votes(x, draws).gather(1, chosen[:, None])[:, 0]
        bounds = [lower_bound(int(k), draws, alpha) for k in counts.cpu()]
        p = torch.tensor(bounds, dtype=torch.float64, device=x.device)
        abstained = p <= 0.5
        radius = torch.where(abstained, 0.0, self.sigma * torch.special.ndtri(p))
        return Certified(labels=chosen, radius=radius, abstained=abstained, probability=p)

    def _noisy(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=self.generator, device=x.device, dtype=x.dtype)
        return x + self.sigma * noise


@lru_cache(maxsize=4096)  # the images of a data set share few counts
def lower_bound(successes: int, draws: int, alpha: float) -> float:
    """Return the one-sided Clopper-Pearson lower bound, of confidence 1 - alpha, on the probability of a success.

    It is the p for which `successes` or more have probability alpha: the alpha quantile of Beta(k, n - k + 1).
    """
    if successes == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if binomial_tail(successes, draws, middle) < alpha:
            low = middle
        else:
            high = middle
    return low


def binomial_tail(successes: int, draws: int, p: float) -> float:
    """Return the probability of at least `successes` successes in `draws` draws of probability `p`."""
    if successes <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0
    k = torch.arange(successes, draws + 1, dtype=torch.float64)
    chosen = math.lgamma(draws + 1) - torch.lgamma(k + 1) - torch.lgamma(draws - k + 1)
    return float((chosen + k * math.log(p) + (draws - k) * math.log1p(-p)).logsumexp(0).exp())


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha!r}, expected a probability of error in (0, 1), e.g. 0.001.")
