"""Label consistency (LC): two views of an image should have the same logits (section 3.4 of the paper).

`gradient` chooses how purification differentiates |g(f(x)) - g(f(view(x)))|^2:

- "paper": through both views, with the floor-indexed adjoint of PyTorch 1.4.0 for the second, which the printed
  results need;
- "stop": through the first view only; the second is a constant target (stop-gradient, as in SimSiam);
- "exact": the true gradient, with which purification hardly works.

The floor-indexed adjoint: resizing by nearest neighbour copies input pixel floor(j * n / m) to output pixel j, and the
true gradient sends output j back to that pixel. PyTorch 1.4.0, with which the paper's results were made, computed it
incorrectly on the GPU (pytorch issue 38985): input pixel i collected the outputs floor(i * m / n) to
floor((i + 1) * m / n) - 1, where the true adjoint needs ceil. Purification depends on this displaced gradient.
"""

from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional as F

from soap import validate
from soap._runtime import distributed
from soap.auxiliary.joint import AuxiliaryTask, JointLosses, JointModel, accuracy
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
        self, model: JointModel, x: Float[Tensor, "batch c h w"], y: Int[Tensor, "batch"], generator: torch.Generator
    ) -> JointLosses:
        """Classify both views of a noisy image and penalise the difference of their logits.

        The noise is one-sided, as in the authors' code: N(0, noise) clipped to [0, 1] is added, and the sum is not
        clipped.
        """
        noisy = x + (self.noise * distributed.normal_like(x, generator)).clamp(0, 1)
        logits = model(torch.cat([random_view(noisy, generator), second_view(noisy)]))
        one, two = logits.chunk(2)
        labels = y.repeat(2)
        return JointLosses(F.cross_entropy(logits, labels), F.mse_loss(one, two), accuracy(logits, labels))

    def loss(self, model: JointModel, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """Return the squared difference of the logits of an image and its second view, averaged over classes."""
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
    """Return the flipped central crop of 28 of 32 pixels, resized back by nearest neighbour."""
    resize = nearest_floor_indexed if floor_indexed else nearest
    return resize(flipped_crop(x), (x.shape[2], x.shape[3]))


def flipped_crop(x: Float[Tensor, "batch c h w"], side: int = 28) -> Float[Tensor, "batch c h2 w2"]:
    """Return the central `side` / 32 of the horizontally flipped image along both axes."""
    height, width = x.shape[2:]
    h, w = round(height * side / 32), round(width * side / 32)
    top, left = (height - h) // 2, (width - w) // 2
    return x.flip(3)[:, :, top : top + h, left : left + w]


def random_view(x: Float[Tensor, "batch c h w"], generator: torch.Generator) -> Float[Tensor, "batch c h w"]:
    """Apply one random flip and one random crop of 24 to 31 of 32 pixels to the whole batch, and resize back.

    The random draws stay on the device as indices, so that nothing waits for the host.
    """
    height, width = x.shape[2:]
    flip, size, top, left = torch.rand(4, device=x.device, generator=generator)
    share = (24 + (size * 8).floor()) / 32
    rows, cols = (_crop_index(n, share, at) for n, at in ((height, top), (width, left)))
    cols = torch.where(flip < 0.5, cols.flip(0), cols)
    return x.index_select(2, rows).index_select(3, cols)


def _crop_index(n: int, share: Tensor, at: Tensor) -> Tensor:
    """Return source indices that resize a crop of `share * n` pixels to `n`; `at` in [0, 1) is its position."""
    size = (share * n).round().long()
    start = (at * (n - size + 1)).floor().long()
    return start + torch.arange(n, device=share.device) * size // n


def nearest(x: Float[Tensor, "batch c h w"], side: tuple[int, int]) -> Float[Tensor, "batch c h2 w2"]:
    """Resize by nearest neighbour; autograd gives the true gradient."""
    for dim, size in ((2, side[0]), (3, side[1])):
        x = _take(x, dim, _sources(size, x.shape[dim], x.device))
    return x


def nearest_floor_indexed(x: Float[Tensor, "batch c h w"], side: tuple[int, int]) -> Float[Tensor, "batch c h2 w2"]:
    """Resize by nearest neighbour; the gradient is that of PyTorch 1.4.0 on the GPU."""
    resized: Tensor = _FloorIndexed.apply(x, side)  # type: ignore[no-untyped-call]
    return resized


class _FloorIndexed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, side: tuple[int, int]) -> Tensor:
        ctx.side = (x.shape[2], x.shape[3])
        return nearest(x, side)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        for dim, size in ((2, ctx.side[0]), (3, ctx.side[1])):
            gradient = _collect(gradient, dim, size)
        return gradient, None


def _collect(gradient: Tensor, dim: int, size: int) -> Tensor:
    """Return, along `dim`, the sum of the floor-indexed outputs of each input pixel i < size."""
    shape = [1] * gradient.ndim
    shape[dim] = size
    parts = [
        _take(gradient, dim, output) * inside.to(gradient.dtype).reshape(shape)
        for output, inside in _floor_indexed(gradient.shape[dim], size, gradient.device)
    ]
    return sum(parts[1:], start=parts[0])


def _take(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x.index_select(dim, index)`; ten times as fast on CPUs along the last dimension."""
    shape = [1] * x.ndim
    shape[dim] = len(index)
    return x.gather(dim, index.reshape(shape).expand(*x.shape[:dim], len(index), *x.shape[dim + 1 :]))


@lru_cache(maxsize=64)
def _sources(outputs: int, inputs: int, device: torch.device) -> Tensor:
    """Return the input pixel of each output pixel."""
    with torch.inference_mode(False):  # autograd saves this cached tensor
        return torch.arange(outputs, device=device) * inputs // outputs


@lru_cache(maxsize=64)
def _floor_indexed(outputs: int, inputs: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return, for k = 0, 1 ..., the k-th output that each input pixel collects, and 1 if it exists, else 0."""
    with torch.inference_mode(False):
        i = torch.arange(inputs, device=device)
        first, after = i * outputs // inputs, (i + 1) * outputs // inputs
        most = -(-outputs // inputs)
        return tuple(((first + k).clamp_max(outputs - 1), (first + k < after).float()) for k in range(most))
