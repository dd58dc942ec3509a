"""Purification by label consistency with seven gradients of the same loss, each measured as a purifier.

The loss is |g(f(x)) - g(f(v(x)))|^2, where view one is the image x itself and view two, v(x), its flipped central crop
resized back. The variants differ in the gradient with respect to the pixels, and two of them in view two:

- "paper": through both views, the second by the floor-indexed adjoint of PyTorch 1.4.0 (see auxiliary/consistency.py);
- "exact": the true gradient;
- "exact-bilinear": the true gradient, but view two is resized bilinearly (`align_corners=False`);
- "exact-blurred": the true gradient with respect to the image, then averaged over 3 x 3 pixels (zero outside);
- "view-two": through view two only, with view one as a fixed target;
- "stop": through view one only, with view two as a fixed target;
- "paper-crop-30": as "paper", but view two is the central crop of 30 of 32 pixels instead of 28.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from soap.auxiliary import Consistency, JointModel, second_view
from soap.auxiliary.consistency import GRADIENTS, flipped_crop, nearest_floor_indexed
from soap.errors import unknown
from soap.shapes import Float, Tensor

VARIANTS = ("paper", "exact", "exact-bilinear", "exact-blurred", "view-two", "stop", "paper-crop-30")
"""In the order of the table in docs/label_consistency.md. Variants that a recipe can choose have the recipe's name."""

ViewPair = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Images [batch, c, h, w] -> views one and two of them, each of the same shape."""


def variant(name: str) -> Consistency:
    """The task with the gradient `name`, one of `VARIANTS`; it has no weights."""
    if name not in VARIANTS:
        raise unknown("gradient variant", name, VARIANTS)
    return Consistency(gradient=name) if name in GRADIENTS else _Variant(name, _VIEWS[name])


class _Variant(Consistency):
    """Label consistency with other views, or another gradient through them."""

    def __init__(self, name: str, views: ViewPair) -> None:
        super().__init__()
        self.gradient = name
        self.views = views

    def loss(self, model: JointModel, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """Mean squared difference between the logits of the two views."""
        one, two = model(torch.cat(self.views(x))).chunk(2)
        difference: Tensor = (one - two).square().mean(1)
        return difference


class _Blurred(torch.autograd.Function):
    """Identity whose gradient is averaged over 3 x 3 pixels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return F.avg_pool2d(gradients[0], 3, stride=1, padding=1)


def _bilinear(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, F.interpolate(flipped_crop(x), x.shape[2:], mode="bilinear", align_corners=False)


def _blurred(x: Tensor) -> tuple[Tensor, Tensor]:
    x = _Blurred.apply(x)  # type: ignore[no-untyped-call]
    return x, second_view(x)


def _view_two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach(), second_view(x)


def _crop_30(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, nearest_floor_indexed(flipped_crop(x, 30), (x.shape[2], x.shape[3]))


_VIEWS: dict[str, ViewPair] = {
    "exact-bilinear": _bilinear,
    "exact-blurred": _blurred,
    "view-two": _view_two,
    "paper-crop-30": _crop_30,
}
