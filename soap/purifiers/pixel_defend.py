"""PixelDefend (Song et al. 2018): move an image, pixel by pixel, towards high likelihood under a generative model.

Pixels are visited in raster order, and their channels one after another. Each takes the most likely value within eps of
its own, given the purified pixels before it.
"""

import math
from functools import partial

import torch

from soap import validate
from soap._runtime.cuda_graphs import release_graphs
from soap._runtime.isolation import isolated
from soap._runtime.progress import purifying
from soap._runtime.splitting import in_chunks
from soap.errors import InputError
from soap.models.logistic_mixture import Candidates, LogisticMixture, most_likely
from soap.models.pixel_generation import PixelChoice, generate_pixels
from soap.models.pixelcnn import PixelCNN
from soap.purifiers.purifier import Purified, Specified
from soap.shapes import Float, Int, Tensor

MAX_IMAGES_PER_PIXEL_PASS = {"cpu": 64, "cuda": 2048}
"""Images purified at once. On a GPU the hundred small kernels of a pixel cost nearly the same for one image and for
many. Powers of two, because replays are padded to them."""

MAX_IMAGES_PER_FORWARD = 256
"""Images in one full forward pass, for the likelihood; more are no faster and need much memory."""


class PixelDefend(Specified):
    """`PixelDefend(model)(x)` moves every channel of every pixel to its most likely level within `eps` of the input.

    The input is first rounded to the model's levels (8 bits); `eps` counts from there and is rounded down to whole
    levels. Of equally likely levels the nearest to the input is taken, then the lower one. In the result, `eps` is the
    largest change of the rounded image, and the losses are its bits per dimension before and after.

    max_memory: limit in bytes for the working set; larger batches are split. Another number of images at once changes
    the rounding, on a CPU, too. Where two levels are equally likely up to rounding, a pixel and those after it differ.
    """

    gradient = "straight-through"
    setting_names = ("eps",)

    def __init__(self, model: PixelCNN, eps: float = 16 / 255, *, max_memory: int | None = None) -> None:
        if not isinstance(model, PixelCNN):
            raise InputError(
                f"got a {type(model).__name__}, expected a PixelCNN: PixelDefend needs a generative model of images."
            )
        validate.non_negative("eps", eps)
        validate.radius(eps)
        self.model = self.prior = model
        self.eps, self.max_memory = eps, max_memory
        reach = math.floor(eps * (model.levels - 1) + 1e-3)  # 16/255 must give 16 levels in single precision, too
        reach = min(reach, model.levels - 1)
        # Nearest first, lower before higher: of equally likely levels the first is selected.
        self.offsets = torch.tensor([0, *(sign * step for step in range(1, reach + 1) for sign in (-1, 1))])

    def __call__(self, x: Float[Tensor, "batch *shape"], *, progress: bool = True) -> Purified:
        """Return the purified batch [batch, c, h, w]; images must have the model's size. Inputs are not modified.

        progress: show a bar in terminals and notebooks if it takes more than two seconds.
        """
        validate.inputs(x, self.model)
        pixel_rows, forward_rows = self._rows_at_once(x.device)
        # A tensor, because a GPU may replace division by a number with multiplication by its inverse.
        top, dtype = x.new_tensor(self.model.levels - 1), x.dtype
        free = partial(release_graphs, self.model)
        with isolated(self.model), torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            before = self.model.levels_of(x.detach())
            with purifying(progress):
                (after,) = in_chunks(self._purify, before, max_rows=pixel_rows, release=free)
            bits = [
                in_chunks(self._bits_per_dim, levels.to(dtype) / top, max_rows=forward_rows, release=free)[0]
                for levels in (before, after)
            ]
        return Purified(
            x=after.to(dtype) / top,
            eps=(after - before).abs().flatten(1).amax(1).to(dtype) / top,
            loss_before=bits[0].to(dtype),
            loss_after=bits[1].to(dtype),
            before=x.detach(),
        )

    def _bits_per_dim(self, x: Tensor) -> tuple[Tensor]:
        return (self.model.bits_per_dim(x),)

    def _purify(self, levels: Int[Tensor, "batch c h w"]) -> tuple[Tensor]:
        pixels, offsets = levels.int().permute(0, 2, 3, 1)[..., None], self.offsets.to(levels.device, torch.int32)
        candidates = (pixels + offsets).clamp_(0, self.model.levels - 1)
        return (generate_pixels(self.model, self._choice, candidates, name=repr(self)),)

    def _choice(self, row: Int[Tensor, "batch w c k"]) -> PixelChoice:
        """Return a function that selects the most likely candidate of every pixel of a row."""
        weight = self.model.head.weight
        candidates = Candidates.among(row, self.model.levels, torch.promote_types(weight.dtype, torch.float32))

        def at(place: int, mixture: LogisticMixture) -> Tensor:
            return most_likely(mixture, candidates.at(place))

        return at

    def _rows_at_once(self, device: torch.device) -> tuple[int, int]:
        """Return the number of images to purify at once, and to pass through the model at once for their likelihood.

        Counts the values that one image needs at peak. While pixels are filled: the rows before every downward
        convolution, the row before every rightward convolution, the skip connections and the row's candidates (twice if
        a GPU replays them), and all candidates. In a full forward pass: the skip connections and a few activations.
        Independent of the number of images: copies of the weights of the rightward convolutions.
        """
        most = MAX_IMAGES_PER_PIXEL_PASS.get(device.type, MAX_IMAGES_PER_PIXEL_PASS["cpu"])
        model = self.model
        if self.max_memory is None:
            return most, min(most, MAX_IMAGES_PER_FORWARD)
        blocks, mixed, candidates = len(model.above), model.head.out_channels, len(self.offsets)
        channels, height, width = model.input_shape
        row = model.channels * ((14 * blocks + 12) * width + 16 * blocks)
        row += candidates * (6 * channels * width + 9 * model.mixtures)
        copies = 2 if device.type == "cuda" and model.recordable else 1
        filling = copies * row + (candidates + 4) * channels * height * width
        forward = ((blocks + 7) * model.channels + 4 * mixed) * height * width
        weights = (16 * blocks + 24) * model.channels**2
        bytes_per_value = model.head.weight.element_size()
        need = (weights + max(filling, forward)) * bytes_per_value
        if self.max_memory < need:
            raise InputError(f"max_memory is {self.max_memory:,} bytes, but one image needs about {need:,} bytes.")
        values = self.max_memory // bytes_per_value - weights
        at_once = min(most, values // filling)
        # A power of two: see MAX_IMAGES_PER_PIXEL_PASS.
        return 1 << at_once.bit_length() - 1, min(MAX_IMAGES_PER_FORWARD, most, values // forward)
