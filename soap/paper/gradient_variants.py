"""Why label consistency purifies: the same loss differentiated in seven ways, each measured as a purifier.

The loss is |g(f(x)) - g(f(v(x)))|^2, where view one is the image x itself and view two, v(x), its flipped central crop
resized back. The variants differ in what of the gradient reaches the pixels, and two of them in what view two is:

- "paper": through both views, the second by the floor-indexed adjoint of PyTorch 1.4.0 (see auxiliary/resize.py);
- "exact": the true gradient;
- "exact-bilinear": the true gradient, where view two is resized bilinearly (`align_corners=False`);
- "exact-blurred": the true gradient with respect to the image, then averaged over 3 x 3 pixels (zero outside);
- "view-two": through view two alone, view one a fixed target;
- "stop": through view one alone, view two a fixed target;
- "paper-crop-30": as "paper", where view two is the central crop of 30 of 32 pixels instead of 28.
"""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from torch.nn import functional as F

from soap.attacks import Attack
from soap.auxiliary import Consistency, JointModel, second_view
from soap.auxiliary.consistency import GRADIENTS, flipped_crop
from soap.auxiliary.resize import nearest_floor_indexed
from soap.auxiliary.task import Classifies
from soap.data import Dataset
from soap.errors import InputError, unknown
from soap.evaluation.sweeps import Run
from soap.evaluation.threats import PAPER
from soap.evaluation.transfer import transfer
from soap.purifiers import SOAP
from soap.results import Row
from soap.shapes import Float, Tensor

ATTACKS = ("none", "fgsm", "pgd")
VARIANTS = ("paper", "exact", "exact-bilinear", "exact-blurred", "view-two", "stop", "paper-crop-30")
"""In the order of the evidence table. Those that a recipe can choose purify here under the same name as elsewhere."""

Views = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Images [batch, c, h, w] -> views one and two of them, each of the same shape."""


def gradient_evidence(
    model: JointModel, data: Dataset, *, attacks: Mapping[str, Attack] | None = None, **run: Unpack[Run]
) -> list[Row]:
    """The network bare and behind each of `VARIANTS`, with the radius min-aux, by the transfer protocol.

    attacks: by name; without them the paper's "none", "fgsm" and "pgd" for the data. The measure "mean_loss_after" is
    the mean of the loss at the purified images.
    """
    if not isinstance(model.auxiliary, Consistency):
        raise InputError(
            f"{model.name} has the auxiliary task {type(model.auxiliary).__name__}, want Consistency: the gradient of "
            "its loss is what is compared. Use a model whose name ends in -lc."
        )
    chosen = _of_the_paper(data) if attacks is None else attacks
    return transfer(model, data, chosen, [_purifier(model, name) for name in VARIANTS], **run)


def variant(name: str) -> Consistency:
    """The task whose loss is differentiated in the way `name`, one of `VARIANTS`; it has no weights of its own."""
    if name not in VARIANTS:
        raise unknown("gradient variant", name, VARIANTS)
    return Consistency(gradient=name) if name in GRADIENTS else _Variant(name, _VIEWS[name])


class _Variant(Consistency):
    """The consistency of two views that are not the usual ones, or not differentiated as usual."""

    def __init__(self, name: str, views: Views) -> None:
        super().__init__()
        self.gradient = name
        self.views = views

    def loss(self, model: Classifies, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """Mean over classes of the squared difference between the logits of the two views."""
        one, two = model(torch.cat(self.views(x))).chunk(2)
        difference: Tensor = (one - two).square().mean(1)
        return difference


class _Blurred(torch.autograd.Function):
    """The identity; on the way back the gradient is averaged over 3 x 3 pixels."""

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


_VIEWS: dict[str, Views] = {
    "exact-bilinear": _bilinear,
    "exact-blurred": _blurred,
    "view-two": _view_two,
    "paper-crop-30": _crop_30,
}


def _purifier(model: JointModel, name: str) -> SOAP:
    purifier = SOAP(model)
    purifier.task = variant(name)
    return purifier


def _of_the_paper(data: Dataset) -> dict[str, Attack]:
    if data.name not in PAPER:
        raise unknown("data set of the paper", data.name, PAPER)
    return {name: PAPER[data.name][name] for name in ATTACKS}
