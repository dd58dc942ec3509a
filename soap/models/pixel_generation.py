"""Images filled in pixel by pixel, each given those before it, at a constant cost a pixel.

Evaluating the whole network for every pixel would cost an image's area squared. Here the stream that looks above is
fed a row at a time and the one that looks left a pixel at a time, both remembering what their convolutions need of
what came before. A row is one function of tensors, thousands of small kernels long, which a GPU can replay as one.
"""

from collections.abc import Callable, Hashable
from functools import partial

import torch

from soap._runtime.cuda_graphs import replayed
from soap.models.causal import DOWN, CausalConv, Past
from soap.models.left_row import LeftRow
from soap.models.logistic_mixture import LogisticMixture
from soap.models.pixelcnn import PixelCNN
from soap.shapes import Int, Tensor

PixelChoice = Callable[[int, LogisticMixture], Int[Tensor, "batch c"]]
"""From a place in a row and the mixture there (its space is that one place) to the levels that the pixel shall have."""

Choice = Callable[[Int[Tensor, "batch w *more"]], PixelChoice]
"""From what is given of a row of pixels to the choice of each: what can be computed for all of them at once, is."""


@torch.no_grad()
def fill(
    model: PixelCNN, choose: Choice, given: Int[Tensor, "batch h w *more"], *, name: Hashable
) -> Int[Tensor, "batch c h w"]:
    """A batch of images as whole levels, every pixel as `choose` says of its mixture and `given`, in raster order.

    The model must be in evaluation mode. On a GPU `choose` must not wait for the host, and `name` tells it and its
    settings from others: what was recorded under a name is replayed.
    """
    row, (channels, height, width) = partial(_fill_row, model, choose), model.input_shape
    blank = partial(model.head.weight.new_zeros, len(given))  # nothing lies above the first row
    before, rows = blank(channels + 1, 1, width), []
    remembered = tuple(
        blank(part.in_channels, part.memory, width).to(memory_format=torch.channels_last)
        for part in _looking_down(model)
    )
    for i in range(height):
        levels, before, *rest = replayed(model, ("row", name), row, before, given[:, i], *remembered)
        remembered = tuple(rest)
        rows.append(levels)
    return torch.stack(rows, 2)


def _looking_down(model: PixelCNN) -> list[CausalConv]:
    return [part for part in model.modules() if isinstance(part, CausalConv) and part.axis == DOWN]


def _fill_row(
    model: PixelCNN, choose: Choice, before: Tensor, given: Tensor, *remembered: Tensor
) -> tuple[Tensor, ...]:
    """The levels of a row, the row as the network takes it in, and what the stream above remembers after it."""
    above: Past = dict(zip(_looking_down(model), remembered, strict=True))
    links = model.look_above(before, above)
    row, chosen = LeftRow(model, links), []
    del links  # the row has its own copy
    choice = choose(given)
    for place in range(given.shape[1]):
        mixture = model.mixture(row.raw(place)[..., None])
        chosen.append(choice(place, mixture))
        row.tell(place, chosen[-1])
    return torch.stack(chosen, 2), row.entering(), *above.values()
