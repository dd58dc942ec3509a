"""The stream that looks left, one pixel at a time, in few matrix products.

What takes time on a GPU is the number of kernels that wait for each other, whatever their size. So what a pixel owes to
those before it is one product for all blocks at once, and only what it owes to itself goes block by block. Activations
are written where later products read them, and the matrices before a concatenated ELU give x beside -x.
"""

import torch
from torch.nn import functional as F

from soap.models.causal import CausalConv, GatedBlock
from soap.models.logistic_mixture import centred
from soap.models.pixelcnn import PixelCNN
from soap.shapes import Float, Int, Tensor


class LeftRow:
    """A row of pixels on its way through `model.look_left`: from left to right, each is asked for and then told.

    links: what the rows above say to every block, [batch, c, 1, w] each.
    """

    def __init__(self, model: PixelCNN, links: list[Tensor]) -> None:
        blocks = [block for block in model.left if isinstance(block, GatedBlock)]
        (batch, _, _, width), like = links[0].shape, model.head.weight
        self.levels = model.levels
        self.sides = torch.linspace(1, -1, 2, dtype=like.dtype, device=like.device)[:, None]
        self.first = _Together([block.first for block in blocks], batch, width)
        self.second = _Together([block.second for block in blocks], batch, width)
        self.first_present = [_both_sides(present.mT).mT for present in self.first.present]
        # What the first convolutions give before they have seen a pixel, to be added to: [block, batch, w, c].
        self.heard = torch.stack([link[:, :, 0].mT for link in links]).to(like.dtype).add_(self.first.bias[:, None])
        self.reach = model.enter_left.memory + 1
        self.entered = like.new_zeros(batch, self.reach + width, model.enter_left.in_channels)
        self.entered[:, self.reach :, -1].fill_(1)
        self.entry = _both_sides(model.enter_left.matrix()), _both_sides(model.enter_left.bias)
        self.head = model.head

    def raw(self, place: int) -> Float[Tensor, "batch numbers"]:
        """The raw numbers of the mixture at `place`, once all pixels to its left are told."""
        heard = self.heard[:, :, place].baddbmm_(self.first.seen_before(place), self.first.past)
        hidden = (heard[:, :, None] * self.sides).flatten(2)
        answers = torch.baddbmm(self.second.bias, self.second.seen_before(place), self.second.past)
        stream = F.linear(self.entered[:, place : place + self.reach].flatten(1), *self.entry)
        for block, (inner, answer) in enumerate(zip(hidden, answers, strict=True)):
            inner.addmm_(self.first.see(block, place, stream), self.first_present[block])
            answer.addmm_(self.second.see(block, place, inner), self.second.present[block])
            stream.view(len(stream), 2, -1).addcmul_(F.glu(answer)[:, None], self.sides)
        return F.linear(F.elu_(stream), self.head.weight.flatten(1), self.head.bias)

    def tell(self, place: int, levels: Int[Tensor, "batch c"]) -> None:
        """The pixel at `place` has these levels."""
        self.entered[:, self.reach + place, :-1] = centred(levels, self.levels, self.entered.dtype)

    def entering(self) -> Float[Tensor, "batch seen 1 w"]:
        """The row as the network takes it in, once all its pixels are told."""
        return self.entered[:, self.reach :].mT[:, :, None]


class _Together:
    """The same convolution of all blocks, and a row of what they see: [block, batch, w, c], x beside -x after ELU."""

    def __init__(self, convolutions: list[CausalConv], batch: int, width: int) -> None:
        one, matrices = convolutions[0], [each.matrix() for each in convolutions]
        self.memory, earlier = one.memory, one.memory * one.in_channels
        self.past = torch.stack([matrix[:, :earlier] for matrix in matrices]).mT
        self.present = [matrix[:, earlier:].mT for matrix in matrices]
        self.bias = torch.stack([each.bias for each in convolutions])[:, None]
        self.seen = one.weight.new_empty(len(convolutions), batch, self.memory + width, one.in_channels)
        self.seen[:, :, : self.memory].zero_()  # nothing lies left of the row

    def seen_before(self, place: int) -> Float[Tensor, "block batch taps"]:
        """The pixels before `place` within reach, side by side."""
        return self.seen[:, :, place : place + self.memory].flatten(2)

    def see(self, block: int, place: int, x: Float[Tensor, "batch c"]) -> Float[Tensor, "batch c"]:
        """What a block sees at `place`, kept for the pixels after it: the ELU of `x`, which is x beside -x."""
        here: Tensor = torch.ops.aten.elu.out(x, out=self.seen[block, :, self.memory + place])
        return here


def _both_sides(x: Float[Tensor, "c *taps"]) -> Float[Tensor, "c2 *taps"]:
    """From a matrix, or a bias, that gives x to one that gives x beside -x."""
    return torch.cat([x, -x])
