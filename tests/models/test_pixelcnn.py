"""PixelCNN: causality, a normalised likelihood, and generation pixel by pixel equal to the whole-image pass."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from soap.errors import InputError
from soap.models.logistic_mixture import LogisticMixture
from soap.models.pixel_generation import PixelChoice, generate_pixels
from soap.models.pixelcnn import GatedBlock, PixelCNN
from soap.purifiers.pixel_defend import PixelDefend
from soap.recipes import generative
from soap.shapes import Tensor


def small(*, seed: int = 0, **options: Any) -> PixelCNN:
    """Return a small model in double precision with no zero weights and no small residual branches."""
    settings = {"channels": 4, "blocks": 2, "mixtures": 2, **options}
    model = PixelCNN(**settings).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model


def pictures(batch: int, shape: tuple[int, ...], *, seed: int = 0, levels: int = 256) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(levels, (batch, *shape), generator=generator).double() / (levels - 1)


def dependence(model: PixelCNN) -> Tensor:
    """[pixels, pixels]: whether the mixture at the second pixel depends on the first pixel, in raster order."""
    _, height, width = model.input_shape
    x = pictures(1, model.input_shape)
    changed = x.repeat(height * width, 1, 1, 1)
    for pixel in range(height * width):
        changed[pixel, :, pixel // width, pixel % width] = 1 - changed[pixel, :, pixel // width, pixel % width]
    with torch.no_grad():
        return ((model.raw(changed) - model.raw(x)).abs().amax(1) > 1e-12).flatten(1)


@settings(max_examples=10)
@given(
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 5), st.integers(1, 5)),
    channels=st.integers(1, 5),
    blocks=st.integers(1, 3),
)
def test_no_pixel_depends_on_itself_or_later_pixels(shape: tuple[int, int, int], channels: int, blocks: int) -> None:
    model = small(inputs=shape, channels=channels, blocks=blocks)
    assert not dependence(model).tril().any()  # upper triangle only


def test_every_pixel_depends_on_all_earlier_pixels_within_reach() -> None:
    """Two blocks see 2 * 2 + 2 rows up; tall and wide images show the reach, a small image shows no gap."""
    seen = dependence(small(inputs=(1, 6, 5), channels=6))
    assert torch.equal(seen, torch.ones(30, 30, dtype=torch.bool).triu(1))
    column = dependence(small(inputs=(1, 9, 1), channels=6))
    assert torch.equal(column, torch.ones(9, 9, dtype=torch.bool).triu(1).tril(6))
    row = dependence(small(inputs=(1, 1, 14), channels=6))
    assert torch.equal(row, torch.ones(14, 14, dtype=torch.bool).triu(1).tril(4 * 2 + 3))


@pytest.mark.parametrize(("shape", "levels"), [((1, 2, 2), 3), ((1, 1, 1), 256), ((2, 1, 2), 3), ((3, 1, 1), 4)])
def test_probabilities_of_all_images_sum_to_one(shape: tuple[int, int, int], levels: int) -> None:
    model = small(inputs=shape, levels=levels)
    every = torch.tensor(list(itertools.product(range(levels), repeat=math.prod(shape)))).reshape(-1, *shape)
    with torch.no_grad():
        total = model(every.double() / (levels - 1)).exp().sum()
    torch.testing.assert_close(total, torch.tensor(1.0, dtype=torch.float64))


def test_uniform_model_of_two_levels_has_one_bit_per_dim() -> None:
    """One very wide logistic over two levels gives each level probability 1/2."""
    model = PixelCNN(inputs=(3, 2, 5), channels=2, blocks=1, mixtures=1, levels=2).double()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
        bits = model.bits_per_dim(pictures(4, (3, 2, 5), levels=2))
        nats = model(pictures(4, (3, 2, 5), levels=2))
    torch.testing.assert_close(bits, torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(nats, torch.full((4,), -30 * math.log(2), dtype=torch.float64))


def test_images_are_rounded_to_the_nearest_levels() -> None:
    model, x = small(inputs=(3, 3, 4)), pictures(2, (3, 3, 4))
    kept = x.clone()
    with torch.no_grad():
        assert torch.equal(model(x), model((x + 0.49 / 255).clamp(max=1)))
        assert not torch.equal(model(x), model((x - 0.51 / 255).clamp(min=0)))
    assert torch.equal(x, kept)


@settings(max_examples=10)
@given(shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 5), st.integers(1, 5)), blocks=st.integers(1, 3))
def test_generation_pixel_by_pixel_equals_the_whole_image_pass(shape: tuple[int, int, int], blocks: int) -> None:
    model, x = small(inputs=shape, blocks=blocks), pictures(3, shape)
    levels = model.levels_of(x)
    with torch.no_grad():
        whole = model.mixture(model.raw(x))

    visited: list[LogisticMixture] = []

    def follow(row: Tensor) -> PixelChoice:
        def at(place: int, mixture: LogisticMixture) -> Tensor:
            visited.append(mixture)
            return row[:, place]

        return at

    assert torch.equal(generate_pixels(model, follow, levels.permute(0, 2, 3, 1), name="follow"), levels)
    for place, mixture in zip(np.ndindex(shape[1:]), visited, strict=True):
        for name in ("log_weights", "means", "log_scales", "coupling"):
            torch.testing.assert_close(getattr(mixture, name)[..., 0], getattr(whole, name)[..., *place])


def test_generation_computes_every_activation_once() -> None:
    """The cost of a pixel is one position of every convolution, not a forward pass.

    Two products return x and -x, so they count twice.
    """
    model, given = small(inputs=(1, 4, 6), channels=5), torch.zeros(3, 4, 6, 1, dtype=torch.int64)

    def product(sums: Any, a: tuple[int, ...], b: tuple[int, ...], **_: Any) -> int:
        return 2 * math.prod(a) * b[-1]

    in_place = dict.fromkeys(
        [torch.ops.aten.addmm_, torch.ops.aten.baddbmm_], product
    )  # the counter does not know these
    with FlopCounterMode(display=False, custom_mapping=in_place) as generation:
        generate_pixels(model, lambda row: lambda place, mixture: row[:, place], given, name="zeros")
    with FlopCounterMode(display=False) as whole, torch.no_grad():
        model.raw(torch.zeros(3, 1, 4, 6, dtype=torch.float64))
    twice = model.enter_left.weight.numel() + 2 * 5 * 2 * 5  # two blocks, of 2 * 5 channels in and 5 out
    assert generation.get_total_flops() == whole.get_total_flops() + 2 * given.numel() * twice


def test_generating_a_pixel_takes_few_kernels() -> None:
    """The difference between two widths removes the cost of a row.

    A block has two products, two ELUs and a gated sum of two kernels.
    """

    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.kernels = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and not function.is_view and "empty" not in str(function):
                self.kernels += 1
            return out

    def kernels(width: int, blocks: int) -> int:
        model, x = small(inputs=(3, 1, width), blocks=blocks), pictures(2, (3, 1, width))
        with Counting() as counting:
            PixelDefend(model)._purify(model.levels_of(x))
        return counting.kernels

    a_pixel = {blocks: kernels(5, blocks) - kernels(4, blocks) for blocks in (1, 3)}
    assert a_pixel[3] - a_pixel[1] == 2 * 6
    assert a_pixel[1] <= 60


def test_dropout_is_active_in_training_mode_only() -> None:
    model, x = small(inputs=(1, 4, 4), dropout=0.5), pictures(2, (1, 4, 4))
    with torch.no_grad():
        assert torch.equal(model.raw(x), model.raw(x))
        model.train()
        assert not torch.equal(model.raw(x), model.raw(x))


def test_initial_weights() -> None:
    """Unit variance except at the ends of residual branches and in the head; means are evenly spread."""
    torch.manual_seed(0)
    model = PixelCNN(channels=32, blocks=4, mixtures=3, inputs=(1, 8, 8))
    for block in (*model.above, *model.left):
        assert isinstance(block, GatedBlock)
        for conv, size in ((block.first, 1.0), (block.second, 0.5)):
            assert float(conv.weight.detach().std()) == pytest.approx(size / math.sqrt(conv.weight[0].numel()), rel=0.1)
    assert model.mixture(model.raw(pictures(1, (1, 8, 8)).float())).means.mean((0, 2, 3, 4)).tolist() == pytest.approx(
        [-0.5, 0.0, 0.5], abs=0.1
    )


def test_model_of_the_recipe_fits_in_16_mb() -> None:
    """At two bytes a parameter."""
    recipe = generative.read("pixeldefend-cifar10")
    model = generative.build(recipe)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 7_000_000 < count < 8_000_000
    purify = generative.purifier(recipe, model)
    assert isinstance(purify, PixelDefend)
    assert purify.offsets.abs().max() == 16


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": (32, 32)}, r"expected the shape of an image: \(channels, height, width\)"),
        ({"inputs": (3, 0, 32)}, "each of inputs is 0"),
        ({"channels": 0}, "channels is 0"),
        ({"blocks": 0}, "blocks is 0"),
        ({"mixtures": 0}, "mixtures is 0"),
        ({"levels": 1}, "levels is 1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dropout": -0.1}, "dropout is -0.1"),
    ],
)
def test_bad_option_raises_an_error_that_names_it(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PixelCNN(**options)


@pytest.mark.gpu
def test_half_precision_is_close_to_single() -> None:
    model = PixelCNN(inputs=(3, 16, 16), channels=32, blocks=3).cuda()
    x = pictures(4, (3, 16, 16)).float().cuda()
    with torch.no_grad():
        single = model.bits_per_dim(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            half = model.bits_per_dim(x)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, single, rtol=0.01, atol=0.01)
