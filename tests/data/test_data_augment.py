import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap.data import gaussian_noise, random_affine, random_crop, random_flip, random_rotation
from soap.errors import InputError

SIZES = st.tuples(st.integers(1, 9), st.sampled_from([1, 3]), st.integers(1, 7), st.integers(1, 7))
SEEDS = st.integers(0, 2**32)


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=40, deadline=None)
@given(shape=SIZES, padding=st.integers(0, 4), seed=SEEDS)
def test_crop_is_a_shift_of_each_image(shape: tuple[int, ...], padding: int, seed: int) -> None:
    x = images(*shape)
    cropped = random_crop(x, padding, seeded(seed))
    top, left = torch.randint(2 * padding + 1, (2, len(x)), generator=seeded(seed))
    for image, got, down, right in zip(x, cropped, top.tolist(), left.tolist(), strict=True):
        wanted = torch.zeros_like(image)
        for row in range(shape[2]):
            for column in range(shape[3]):
                y, z = row + down - padding, column + right - padding
                if 0 <= y < shape[2] and 0 <= z < shape[3]:
                    wanted[:, row, column] = image[:, y, z]
        assert torch.equal(got, wanted)


@settings(max_examples=30, deadline=None)
@given(shape=SIZES, seed=SEEDS)
def test_flip_mirrors_some(shape: tuple[int, ...], seed: int) -> None:
    x = images(*shape)
    flipped = random_flip(x, seeded(seed))
    heads = torch.rand(len(x), generator=seeded(seed)) < 0.5
    for image, got, mirrored in zip(x, flipped, heads.tolist(), strict=True):
        wanted = torch.stack([image[:, :, shape[3] - 1 - k] for k in range(shape[3])], dim=-1)
        assert torch.equal(got, wanted if mirrored else image)


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 9), channels=st.sampled_from([1, 3]), side=st.integers(1, 6), seed=SEEDS)
def test_rotation_turns_anticlockwise_by_k(batch: int, channels: int, side: int, seed: int) -> None:
    x = images(batch, channels, side, side)
    turned, k = random_rotation(x, seeded(seed))
    assert torch.equal(k, torch.randint(4, (batch,), generator=seeded(seed)))
    for image, got, turns in zip(x, turned, k.tolist(), strict=True):
        for _ in range(turns):
            # One quarter turn anticlockwise: the rightmost column becomes the top row.
            image = torch.stack([image[:, :, side - 1 - row] for row in range(side)], dim=1)
        assert torch.equal(got, image)


def bicubic_weight(distance: float, a: float = -0.75) -> float:
    """Return the weight of a pixel at a distance (Keys 1981), with the constant of PyTorch and OpenCV."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def bicubic(image: torch.Tensor, row: float, column: float) -> float:
    """Return the value at a position of a [height, width] image; there is black outside."""
    height, width = image.shape
    return sum(
        bicubic_weight(row - i) * bicubic_weight(column - j) * image[i, j].item()
        for i in range(height)
        for j in range(width)
    )


@settings(max_examples=15, deadline=None)
@given(shape=SIZES, amount=st.floats(0, 0.5), seed=SEEDS)
def test_affine_turns_scales_and_shears_about_the_centre(shape: tuple[int, ...], amount: float, seed: int) -> None:
    x = images(*shape).double()
    moved = random_affine(x, amount, seeded(seed))
    drawn = amount * (2 * torch.rand(3, len(x), generator=seeded(seed), dtype=x.dtype) - 1)
    centre = torch.tensor([(shape[3] - 1) / 2, (shape[2] - 1) / 2], dtype=x.dtype)
    for image, got, (angle, change, shear) in zip(x, moved, drawn.T.tolist(), strict=True):
        turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        matrix = (1 + change) * torch.tensor(turn, dtype=x.dtype) + torch.tensor([[0, shear], [0, 0]], dtype=x.dtype)
        for row in range(shape[2]):
            for column in range(shape[3]):
                at = matrix @ (torch.tensor([column, row], dtype=x.dtype) - centre) + centre
                wanted = [min(max(bicubic(plane, at[1].item(), at[0].item()), 0.0), 1.0) for plane in image]
                assert got[:, row, column].tolist() == pytest.approx(wanted, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(shape=SIZES, sigma=st.floats(0, 2), seed=SEEDS)
def test_noise_is_a_normal_sample_times_sigma(shape: tuple[int, ...], sigma: float, seed: int) -> None:
    x = images(*shape)
    draw = torch.randn(shape, generator=seeded(seed))
    free = gaussian_noise(x, sigma, seeded(seed), clip=None)
    assert torch.allclose(free, x + sigma * draw, atol=1e-6)
    assert torch.equal(gaussian_noise(x, sigma, seeded(seed)), free.clamp(0, 1))
    assert torch.equal(gaussian_noise(x, sigma, seeded(seed), clip=(0.25, 0.5)), free.clamp(0.25, 0.5))


def test_random_numbers_have_the_stated_distribution() -> None:
    """Six standard errors on 4,000 images."""
    x = torch.zeros(4000, 1, 5, 5)
    x[:, :, 2, 2] = 1
    where = random_crop(x, 2, seeded(0)).flatten(1).argmax(1)
    counts = torch.bincount(where, minlength=25)
    assert (counts - 160).abs().max() < 6 * (160 * 24 / 25) ** 0.5
    x = torch.zeros(4000, 1, 1, 2)
    x[..., 0] = 1
    assert abs(random_flip(x, seeded(0))[..., 1].mean() - 0.5) < 6 * 0.5 / 4000**0.5
    _, k = random_rotation(torch.zeros(4000, 1, 2, 2), seeded(0))
    assert (torch.bincount(k, minlength=4) - 1000).abs().max() < 6 * 750**0.5
    noise = gaussian_noise(torch.zeros(4000, 4), 0.3, seeded(0), clip=None)
    assert abs(noise.mean()) < 6 * 0.3 / 16000**0.5
    assert abs(noise.std() - 0.3) < 6 * 0.3 / 32000**0.5


CALLS = {
    "crop": lambda x, generator: random_crop(x, 2, generator),
    "flip": random_flip,
    "affine": lambda x, generator: random_affine(x, 0.1, generator),
    "rotation": lambda x, generator: random_rotation(x, generator)[0],
    "noise": lambda x, generator: gaussian_noise(x, 0.5, generator),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_seeded_and_without_side_effects(call) -> None:
    x = images(16, 3, 8, 8)
    before, state = x.clone(), torch.get_rng_state()
    first, again, other = call(x, seeded(1)), call(x, seeded(1)), call(x, seeded(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, before)
    assert first.data_ptr() != x.data_ptr()
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shape == x.shape
    assert first.dtype == x.dtype
    assert call(x.double(), seeded(1)).dtype == torch.float64


def test_noise_takes_any_rank() -> None:
    assert gaussian_noise(torch.zeros(3, 7), 0.1, seeded(0)).shape == (3, 7)


X = images(2, 3, 4, 4)
BAD = {
    "negative padding": (lambda g: random_crop(X, -1, g), "padding is -1"),
    "crop of a vector": (lambda g: random_crop(X.flatten(1), 1, g), "expected images"),
    "crop of bytes": (lambda g: random_crop(X.byte(), 1, g), "x is torch.uint8; expected a floating-point"),
    "flip of one image": (lambda g: random_flip(X[0], g), "expected images"),
    "affine of a vector": (lambda g: random_affine(X.flatten(1), 0.1, g), "expected images"),
    "affine by a negative amount": (lambda g: random_affine(X, -0.1, g), "amount is -0.1"),
    "affine by NaN": (lambda g: random_affine(X, float("nan"), g), "amount is nan"),
    "empty batch": (lambda g: random_flip(X[:0], g), "at least one example"),
    "scalar": (lambda g: gaussian_noise(torch.tensor(1.0), 0.1, g), "at least one example"),
    "turn of an oblong": (lambda g: random_rotation(X[..., :3], g), "images are 4 x 3; expected square"),
    "negative sigma": (lambda g: gaussian_noise(X, -0.1, g), "sigma is -0.1"),
    "sigma NaN": (lambda g: gaussian_noise(X, float("nan"), g), "sigma is nan"),
    "clip reversed": (lambda g: gaussian_noise(X, 0.1, g, clip=(1, 0)), r"clip is \(1, 0\)"),
    "other device": (lambda g: random_flip(X.to("meta"), g), r"generator is on cpu and x on meta.*Generator\('meta'\)"),
}


@pytest.mark.parametrize(("call", "says"), BAD.values(), ids=BAD.keys())
def test_bad_arguments(unchecked_shapes: None, call, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call(seeded(0))


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_on_the_gpu(call) -> None:
    x = images(16, 3, 8, 8).cuda()
    first, again = (call(x, torch.Generator("cuda").manual_seed(1)) for _ in range(2))
    assert first.device == x.device
    assert torch.equal(first, again)
    with pytest.raises(InputError, match="generator is on cpu"):
        call(x, seeded(1))
