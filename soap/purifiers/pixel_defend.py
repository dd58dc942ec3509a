"""PixelDefend (Song et al. 2018): an image moved towards what a generative model finds likely, pixel by pixel.

Pixels are visited in raster order and their channels one after another; each takes the most likely value within eps
of its own, given the purified ones before it.
"""

import math
from functools import partial

import torch

from soap import validate
from soap._runtime.cuda_graphs import forget
from soap._runtime.isolation import isolated
from soap._runtime.splitting import by_rows
from soap.errors import InputError
from soap.models.likeliest import Candidates, most_likely
from soap.models.logistic_mixture import LogisticMixture
from soap.models.pixel_walk import PixelChoice, fill
from soap.models.pixelcnn import PixelCNN
from soap.purifiers.soap import Purified
from soap.shapes import Float, Int, Tensor
from soap.specs import Spec, call_text

SIDE_BY_SIDE = {"cpu": 64, "cuda": 2048}
"""Images walked at once at most: on a GPU a pixel's hundred small kernels cost nearly the same for one and for many.
A power of two, to which a replay is padded."""

WHOLE_AT_ONCE = 256
"""Images passed whole through the model at once at most: more are no faster, and take a lot of memory."""


class PixelDefend:
    """`purify(x)` moves every channel of every pixel to its most likely level within `eps` of the input's.

    The input is rounded to the model's levels (8 bits) first, and `eps` counts from there; it is cut to whole levels.
    Ties go to the level nearest to the input's, then to the lower. In the result, `eps` is the largest change of the
    rounded image and the losses are its bits per dimension before and after.

    max_memory: bytes that the working set may take; larger batches are split. Another number of images at once rounds
    otherwise, on a CPU, too: where two levels are equally likely but for that, a pixel and those after it differ.
    """

    def __init__(self, model: PixelCNN, eps: float = 16 / 255, *, max_memory: int | None = None) -> None:
        if not isinstance(model, PixelCNN):
            raise InputError(f"got a {type(model).__name__}, want a PixelCNN: PixelDefend asks a model of images.")
        validate.non_negative("eps", eps)
        self.model, self.eps, self.max_memory = model, eps, max_memory
        reach = math.floor(eps * (model.levels - 1) + 1e-3)  # 16/255 is 16 levels, in single precision, too
        reach = min(reach, model.levels - 1)
        # Nearest first and lower before higher: the first of equals is the one that ties go to.
        self.offsets = torch.tensor([0, *(sign * step for step in range(1, reach + 1) for sign in (-1, 1))])

    def spec(self) -> Spec:
        """The settings, as result rows store them."""
        return Spec(name="PixelDefend", settings={"eps": self.eps})

    def __repr__(self) -> str:
        return call_text(self.spec())

    def __call__(self, x: Float[Tensor, "batch *shape"]) -> Purified:
        """Purify a batch [batch, c, h, w] of images in [0, 1] of the model's own size; inputs are not changed."""
        validate.inputs(x, self.model)
        walked, whole = self._rows_at_once(x.device)
        top, dtype = x.new_tensor(self.model.levels - 1), x.dtype  # by a number a GPU may multiply with 1 / 255
        free = partial(forget, self.model)
        with isolated(self.model), torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            before = self.model.levels_of(x.detach())
            (after,) = by_rows(self._purify, before, most=walked, free=free)
            bits = [
                by_rows(self._bits_per_dim, levels.to(dtype) / top, most=whole, free=free)[0]
                for levels in (before, after)
            ]
        return Purified(
            x=after.to(dtype) / top,
            eps=(after - before).abs().flatten(1).amax(1).to(dtype) / top,
            loss_before=bits[0].to(dtype),
            loss_after=bits[1].to(dtype),
        )

    def _bits_per_dim(self, x: Tensor) -> tuple[Tensor]:
        return (self.model.bits_per_dim(x),)

    def _purify(self, levels: Int[Tensor, "batch c h w"]) -> tuple[Tensor]:
        pixels, offsets = levels.int().permute(0, 2, 3, 1)[..., None], self.offsets.to(levels.device, torch.int32)
        candidates = (pixels + offsets).clamp_(0, self.model.levels - 1)
        return (fill(self.model, self._choice, candidates, name=repr(self)),)

    def _choice(self, row: Int[Tensor, "batch w c k"]) -> PixelChoice:
        """The most likely of the candidates of every pixel of a row."""
        weight = self.model.head.weight
        candidates = Candidates.among(row, self.model.levels, torch.promote_types(weight.dtype, torch.float32))

        def at(place: int, mixture: LogisticMixture) -> Tensor:
            return most_likely(mixture, candidates.at(place))

        return at

    def _rows_at_once(self, device: torch.device) -> tuple[int, int]:
        """How many images to walk at once, and to pass whole through the model, for their likelihood, at once.

        Counted in the numbers that one image keeps at the worst moment: on the walk, the rows before every convolution
        that looks down, the row before every one that looks left, the links and the row's candidates, once more where a
        GPU replays them, and all candidates; in a whole pass, the links and a handful of activations. Beside the
        images lie the walk's own copy of the weights that look left and one that a convolution makes to its liking.
        """
        most, model = SIDE_BY_SIDE.get(device.type, SIDE_BY_SIDE["cpu"]), self.model
        if self.max_memory is None:
            return most, min(most, WHOLE_AT_ONCE)
        blocks, mixed, candidates = len(model.above), model.head.out_channels, len(self.offsets)
        channels, height, width = model.input_shape
        row = model.channels * ((14 * blocks + 12) * width + 16 * blocks)
        row += candidates * (6 * channels * width + 9 * model.mixtures)
        copies = 2 if device.type == "cuda" and model.recordable else 1
        walk = copies * row + (candidates + 4) * channels * height * width
        whole = ((blocks + 7) * model.channels + 4 * mixed) * height * width
        weights = (16 * blocks + 24) * model.channels**2
        bytes_a_number = model.head.weight.element_size()
        need = (weights + max(walk, whole)) * bytes_a_number
        if self.max_memory < need:
            raise InputError(f"max_memory is {self.max_memory:,} bytes, but one image needs about {need:,}.")
        numbers = self.max_memory // bytes_a_number - weights
        walked = min(most, numbers // walk)
        return 1 << walked.bit_length() - 1, min(WHOLE_AT_ONCE, most, numbers // whole)  # see SIDE_BY_SIDE
