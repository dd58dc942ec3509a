"""Images generated pixel by pixel in raster order, each pixel given those before it, at a constant cost per pixel.

Running the whole network for every pixel would cost the squared image area. Here the `above` stream runs once a row and
the `left` stream once a pixel, both with cached activations. One row is one function of tensors, which a GPU replays as
one CUDA graph of thousands of small kernels.
"""

from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch.nn import functional as F

from soap._runtime.cuda_graphs import replayed
from soap.models.logistic_mixture import LogisticMixture, centred
from soap.models.pixelcnn import DOWN, Cache, CausalConv, GatedBlock, PixelCNN
from soap.shapes import Float, Int, Tensor

PixelChoice = Callable[[int, LogisticMixture], Int[Tensor, "batch c"]]
"""From a column and the pixel's mixture to the pixel's levels."""

RowChoice = Callable[[Int[Tensor, "batch w *more"]], PixelChoice]
"""From one row of `given` to the choice of its pixels; work shared by the row's pixels is done once, here."""


@torch.no_grad()
def generate_pixels(
    model: PixelCNN, choose: RowChoice, given: Int[Tensor, "batch h w *more"], *, name: Hashable
) -> Int[Tensor, "batch c h w"]:
    """Return a batch of images as integer levels; `choose` selects each pixel from its mixture and `given`.

    The model must be in evaluation mode. On a GPU `choose` must not wait for the host. `name` identifies `choose` and
    its settings: a CUDA graph recorded under a name is replayed for the same name.
    """
    generate_row, (channels, height, width) = partial(_generate_row, model, choose), model.input_shape
    zeros = partial(model.head.weight.new_zeros, len(given))
    above, rows = zeros(channels + 1, 1, width), []  # zeros above the first row
    cached = tuple(
        zeros(part.in_channels, part.memory, width).to(memory_format=torch.channels_last)
        for part in _vertical_convolutions(model)
    )
    for i in range(height):
        levels, above, *rest = replayed(model, ("row", name), generate_row, above, given[:, i], *cached)
        cached = tuple(rest)
        rows.append(levels)
    return torch.stack(rows, 2)


def _vertical_convolutions(model: PixelCNN) -> list[CausalConv]:
    return [part for part in model.modules() if isinstance(part, CausalConv) and part.axis == DOWN]


def _generate_row(
    model: PixelCNN, choose: RowChoice, above: Tensor, given: Tensor, *cached: Tensor
) -> tuple[Tensor, ...]:
    """Return the levels of a row, the row as network input, and the caches of the `above` stream after it."""
    cache: Cache = dict(zip(_vertical_convolutions(model), cached, strict=True))
    links = model.above_stream(above, cache)
    row, chosen = RowDecoder(model, links), []
    del links  # the decoder has a copy
    choice = choose(given)
    for column in range(given.shape[1]):
        mixture = model.mixture(row.raw(column)[..., None])
        chosen.append(choice(column, mixture))
        row.set_pixel(column, chosen[-1])
    return torch.stack(chosen, 2), row.network_input(), *cache.values()


class RowDecoder:
    """The `left` stream of a `PixelCNN` for one row, one pixel at a time: `raw(i)`, then `set_pixel(i)`, for each i.

    On a GPU the time depends on the number of dependent kernels, not on their size. So the contribution of all earlier
    pixels is one matrix product for all blocks, and only the current pixel goes block by block. Activations are written
    where later products read them. Matrices before a concatenated ELU return x and -x side by side.

    links: from the `above` stream to every block, [batch, c, 1, w] each.
    """

    def __init__(self, model: PixelCNN, links: list[Tensor]) -> None:
        blocks = [block for block in model.left if isinstance(block, GatedBlock)]
        (batch, _, _, width), like = links[0].shape, model.head.weight
        self.levels = model.levels
        self.signs = torch.linspace(1, -1, 2, dtype=like.dtype, device=like.device)[:, None]
        self.first = _StackedConv([block.first for block in blocks], batch, width)
        self.second = _StackedConv([block.second for block in blocks], batch, width)
        self.first_present = [_with_negative(present.mT).mT for present in self.first.present]
        # Output of the first convolutions without any pixel of the row: [block, batch, w, c].
        self.offset = torch.stack([link[:, :, 0].mT for link in links]).to(like.dtype).add_(self.first.bias[:, None])
        self.reach = model.enter_left.memory + 1
        self.inputs = like.new_zeros(batch, self.reach + width, model.enter_left.in_channels)
        self.inputs[:, self.reach :, -1].fill_(1)
        self.enter = _with_negative(model.enter_left.matrix()), _with_negative(model.enter_left.bias)
        self.head = model.head

    def raw(self, column: int) -> Float[Tensor, "batch parameters"]:
        """Return the raw mixture parameters at `column`, after all pixels to its left are set."""
        offset = self.offset[:, :, column].baddbmm_(self.first.inputs_before(column), self.first.past)
        hidden = (offset[:, :, None] * self.signs).flatten(2)
        outputs = torch.baddbmm(self.second.bias, self.second.inputs_before(column), self.second.past)
        stream = F.linear(self.inputs[:, column : column + self.reach].flatten(1), *self.enter)
        for block, (inner, output) in enumerate(zip(hidden, outputs, strict=True)):
            inner.addmm_(self.first.append(block, column, stream), self.first_present[block])
            output.addmm_(self.second.append(block, column, inner), self.second.present[block])
            stream.view(len(stream), 2, -1).addcmul_(F.glu(output)[:, None], self.signs)
        return F.linear(F.elu_(stream), self.head.weight.flatten(1), self.head.bias)

    def set_pixel(self, column: int, levels: Int[Tensor, "batch c"]) -> None:
        """Set the levels of the pixel at `column`."""
        self.inputs[:, self.reach + column, :-1] = centred(levels, self.levels, self.inputs.dtype)

    def network_input(self) -> Float[Tensor, "batch seen 1 w"]:
        """Return the row as network input, after all its pixels are set."""
        return self.inputs[:, self.reach :].mT[:, :, None]


class _StackedConv:
    """The same convolution of all blocks, with one row of its inputs after ELU: [block, batch, w, c]."""

    def __init__(self, convolutions: list[CausalConv], batch: int, width: int) -> None:
        one, matrices = convolutions[0], [each.matrix() for each in convolutions]
        self.memory, earlier = one.memory, one.memory * one.in_channels
        self.past = torch.stack([matrix[:, :earlier] for matrix in matrices]).mT
        self.present = [matrix[:, earlier:].mT for matrix in matrices]
        self.bias = torch.stack([each.bias for each in convolutions])[:, None]
        self.inputs = one.weight.new_empty(len(convolutions), batch, self.memory + width, one.in_channels)
        self.inputs[:, :, : self.memory].zero_()  # zero padding left of the row

    def inputs_before(self, column: int) -> Float[Tensor, "block batch taps"]:
        """Return the flattened inputs left of `column` under the kernel."""
        return self.inputs[:, :, column : column + self.memory].flatten(2)

    def append(self, block: int, column: int, x: Float[Tensor, "batch c"]) -> Float[Tensor, "batch c"]:
        """Store and return ELU(x) as a block's input at `column`; `x` holds x and -x side by side."""
        stored: Tensor = torch.ops.aten.elu.out(x, out=self.inputs[block, :, self.memory + column])
        return stored


def _with_negative(x: Float[Tensor, "c *taps"]) -> Float[Tensor, "c2 *taps"]:
    """Return a matrix or bias that gives x and -x, from one that gives x."""
    return torch.cat([x, -x])
