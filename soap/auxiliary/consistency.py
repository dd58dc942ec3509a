"""Label consistency (LC): two views of one image must get the same logits (section 3.4 of the paper).

`gradient` chooses how purification differentiates |g(f(x)) - g(f(view(x)))|^2:

- "paper": through both views, the second with the floor-indexed adjoint of PyTorch 1.4.0 (see resize.py),
  which the printed figures need;
- "stop": through the first view alone, the second a fixed target (a stop-gradient, as in SimSiam);
- "exact": the true gradient, under which purification hardly works.
"""

from typing import Any

import torch
from torch.nn import functional as F

from soap import validate
from soap._runtime import distributed
from soap.auxiliary.resize import nearest, nearest_floor_indexed
from soap.auxiliary.task import AuxiliaryTask, Classifies, JointLosses, accuracy
from soap.shapes import Float, Int, Tensor

GRADIENTS = ("paper", "stop", "exact")


class Consistency(AuxiliaryTask):
    """Mean squared difference of the logits of two views; the head h is the classifier itself."""

    def __init__(self, *, alpha: float = 1.0, noise: float = 0.1, gradient: str = "paper") -> None:
        super().__init__()
        validate.choice("gradient", gradient, GRADIENTS)
        self.alpha = alpha
        self.noise = noise
        self.gradient = gradient

    def settings(self) -> dict[str, Any]:
        """The gradient rule: results of different rules are different results."""
        return {"gradient": self.gradient}

    def losses(
        self, model: Classifies, x: Float[Tensor, "batch c h w"], y: Int[Tensor, "batch"], generator: torch.Generator
    ) -> JointLosses:
        """Classify both views of one noisy image and pull their logits together.

        The authors' noise is one-sided: N(0, noise) clipped to [0, 1] and added, the sum left as it is.
        """
        noisy = x + (self.noise * distributed.normal(x, generator)).clamp(0, 1)
        logits = model(torch.cat([random_view(noisy, generator), second_view(noisy)]))
        one, two = logits.chunk(2)
        labels = y.repeat(2)
        return JointLosses(F.cross_entropy(logits, labels), F.mse_loss(one, two), accuracy(logits, labels))

    def loss(self, model: Classifies, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """Mean over classes of the squared difference between the image's logits and its second view's."""
        if self.gradient == "stop":
            with torch.no_grad():
                two = model(second_view(x))
            one = model(x)
        else:
            view = second_view(x, floor_indexed=self.gradient == "paper")
            one, two = model(torch.cat([x, view])).chunk(2)
        difference: Tensor = (one - two).square().mean(1)
        return difference


def second_view(x: Float[Tensor, "batch c h w"], *, floor_indexed: bool = False) -> Float[Tensor, "batch c h w"]:
    """The flipped central crop of 28 of 32 pixels, resized back by nearest neighbour."""
    resize = nearest_floor_indexed if floor_indexed else nearest
    return resize(flipped_crop(x), (x.shape[2], x.shape[3]))


def flipped_crop(x: Float[Tensor, "batch c h w"], side: int = 28) -> Float[Tensor, "batch c h2 w2"]:
    """The central `side` of 32 pixels each way of the image flipped left to right; of other sizes the same share."""
    height, width = x.shape[2:]
    h, w = round(height * side / 32), round(width * side / 32)
    top, left = (height - h) // 2, (width - w) // 2
    return x.flip(3)[:, :, top : top + h, left : left + w]


def random_view(x: Float[Tensor, "batch c h w"], generator: torch.Generator) -> Float[Tensor, "batch c h w"]:
    """One random flip and one random crop of 24 to 31 of 32 pixels for the whole batch, resized back.

    The draws stay on the device as indices: nothing waits for the host.
    """
    height, width = x.shape[2:]
    flip, size, top, left = torch.rand(4, device=x.device, generator=generator)
    share = (24 + (size * 8).floor()) / 32
    rows, cols = (_crop_index(n, share, at) for n, at in ((height, top), (width, left)))
    cols = torch.where(flip < 0.5, cols.flip(0), cols)
    return x.index_select(2, rows).index_select(3, cols)


def _crop_index(n: int, share: Tensor, at: Tensor) -> Tensor:
    """Source indices of a nearest-neighbour resize to `n` of a crop of `share * n` pixels, placed by `at` in [0, 1)."""
    size = (share * n).round().long()
    start = (at * (n - size + 1)).floor().long()
    return start + torch.arange(n, device=share.device) * size // n
