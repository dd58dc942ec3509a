"""Images filled in pixel by pixel, each given those before it, at a constant cost a pixel.

Evaluating the whole network for every pixel would cost an image's area squared. Here the stream that looks above is
fed a row at a time and the one that looks left a pixel at a time, both remembering what their convolutions need of
what came before. A row is one function of tensors, thousands of small kernels long, which a GPU can replay as one.
"""

from collections.abc import Callable, Hashable
from functools import partial

import torch

from soap.graphs import replayed
from soap.models.causal import DOWN, CausalConv, Past
from soap.models.logistic_mixture import LogisticMixture
from soap.models.pixelcnn import PixelCNN
from soap.shapes import Int, Tensor

Choice = Callable[[LogisticMixture, Int[Tensor, "batch *more"]], Int[Tensor, "batch c"]]
"""From the mixture of a pixel (its space is one place) and what is given of that pixel to the levels it shall have."""


@torch.no_grad()
def fill(
    model: PixelCNN, choose: Choice, given: Int[Tensor, "batch h w *more"], *, name: Hashable
) -> Int[Tensor, "batch c h w"]:
    """A batch of images as whole levels, every pixel as `choose` says of its mixture and `given`, in raster order.

    The model must be in evaluation mode. On a GPU `choose` must not wait for the host, and `name` tells it and its
    settings from others: what was recorded under a name is replayed.
    """
    row = partial(_fill_row, model, choose)
    before = model.head.weight.new_zeros(len(given), model.input_shape[0] + 1, 1, model.input_shape[2])
    remembered: tuple[Tensor, ...] = ()  # nothing lies above the first row
    rows = []
    for i in range(model.input_shape[1]):
        levels, before, *rest = replayed(model, ("row", name), row, before, given[:, i], *remembered)
        remembered = tuple(rest)
        rows.append(levels)
    return torch.stack(rows, 2)


def _fill_row(
    model: PixelCNN, choose: Choice, before: Tensor, given: Tensor, *remembered: Tensor
) -> tuple[Tensor, ...]:
    """The levels of a row, the row as the network takes it in, and what the stream above remembers after it."""
    looking_down = [part for part in model.modules() if isinstance(part, CausalConv) and part.axis == DOWN]
    above: Past = dict(zip(looking_down, remembered, strict=False))
    links = model.look_above(before, above)
    left: Past = {}
    pixel, chosen, entering = torch.zeros_like(before[..., :1]), [], []
    for j in range(given.shape[1]):
        raw = model.look_left(pixel, [link[..., j : j + 1] for link in links], left)
        chosen.append(choose(model.mixture(raw[..., 0]), given[:, j]))
        pixel = model.entering(chosen[-1][:, :, None, None])
        entering.append(pixel)
    return torch.stack(chosen, 2), torch.cat(entering, 3), *(above[part] for part in looking_down)
