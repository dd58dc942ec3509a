"""Images filled in pixel by pixel, each given those before it, at a constant cost a pixel.

Evaluating the whole network for every pixel would cost an image's area squared. Here the stream that looks above is
fed a row at a time and the one that looks left a pixel at a time, both remembering what their convolutions need of
what came before.
"""

from collections.abc import Callable

import torch

from soap.models.causal import Past
from soap.models.logistic_mixture import LogisticMixture
from soap.models.pixelcnn import PixelCNN
from soap.shapes import Int, Tensor

Choice = Callable[[LogisticMixture, int, int], Int[Tensor, "batch c"]]
"""From the mixture of a pixel (its space is one place), its row and its column to the levels it shall have."""


@torch.no_grad()
def fill(model: PixelCNN, choose: Choice, *, batch: int) -> Int[Tensor, "batch c h w"]:
    """A batch of images as whole levels, every pixel as `choose` says, in raster order.

    The model must be in evaluation mode. A pixel of eight blocks takes about 250 kernels, whatever the batch, so images
    are best taken many at once on a GPU.
    """
    channels, height, width = model.input_shape
    device = model.head.weight.device
    levels = torch.zeros(batch, channels, height, width, dtype=torch.int64, device=device)
    image = torch.zeros(batch, channels + 1, height, width, dtype=model.head.weight.dtype, device=device)
    outside = torch.zeros_like(image[:, :, :1])
    above: Past = {}
    for i in range(height):
        links = model.look_above(image[:, :, i - 1 : i] if i else outside, above)
        left: Past = {}
        for j in range(width):
            before = image[:, :, i : i + 1, j - 1 : j] if j else outside[..., :1]
            raw = model.look_left(before, [link[..., j : j + 1] for link in links], left)
            levels[:, :, i, j] = choose(model.mixture(raw[..., 0]), i, j)
            image[:, :, i : i + 1, j : j + 1] = model.entering(levels[:, :, i : i + 1, j : j + 1])
    return levels
