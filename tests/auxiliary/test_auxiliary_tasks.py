"""Each auxiliary task against its formula, computed image by image."""

import numpy as np
import pytest
import torch
from tiny import TASKS, noise_images, tiny_model
from torch.nn import functional as F

from soap.auxiliary import Consistency, random_view, second_view
from soap.auxiliary.consistency import nearest, nearest_floor_indexed
from soap.errors import InputError


@pytest.mark.parametrize("task", TASKS)
def test_loss_of_a_sample_does_not_depend_on_the_rest_of_the_batch(task):
    model = tiny_model(task, dtype=torch.float64)
    x = noise_images(5, dtype=torch.float64)
    together = model.auxiliary.loss(model, x)
    assert together.shape == (5,)
    torch.testing.assert_close(together, torch.cat([model.auxiliary.loss(model, one) for one in x.split(1)]))


def test_reconstruction_is_the_mean_squared_error_of_the_decoder():
    model, x = tiny_model("reconstruction"), noise_images(3)
    for one, loss in zip(x, model.auxiliary.loss(model, x), strict=True):
        seen = model.auxiliary.decoder(model.encoder(one[None]))[0]
        pairs = zip(one.flatten().tolist(), seen.flatten().tolist(), strict=True)
        assert loss.item() == pytest.approx(sum((a - b) ** 2 for a, b in pairs) / 64, rel=1e-4)


def test_reconstruction_trains_on_one_clipped_noisy_view():
    model, x, y = tiny_model("reconstruction"), noise_images(4), torch.tensor([0, 1, 2, 3])
    got = model.auxiliary.losses(model, x, y, torch.Generator().manual_seed(3))
    noisy = (x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))).clamp(0, 1)
    torch.testing.assert_close(got.classification, F.cross_entropy(model(noisy), y))
    torch.testing.assert_close(got.auxiliary, (model.auxiliary.reconstruct(model, noisy) - x).square().mean())
    assert got.accuracy.item() == (model(noisy).argmax(1) == y).float().mean().item()


def test_rotation_sums_the_squared_error_over_the_four_turns():
    model, x = tiny_model("rotation"), noise_images(3)
    for one, loss in zip(x, model.auxiliary.loss(model, x), strict=True):
        total = 0.0
        for turn in range(4):
            turned = torch.from_numpy(np.rot90(one.numpy(), turn, axes=(1, 2)).copy())
            chance = model.auxiliary.head(model.encoder(turned[None])).softmax(1)[0].tolist()
            total += sum((p - (k == turn)) ** 2 for k, p in enumerate(chance))
        assert loss.item() == pytest.approx(total, rel=1e-4)


def test_rotation_trains_classifier_and_head_on_all_four_noisy_turns():
    model, x, y = tiny_model("rotation"), noise_images(4), torch.tensor([0, 1, 2, 3])
    got = model.auxiliary.losses(model, x, y, torch.Generator().manual_seed(3))
    turned = torch.cat([torch.from_numpy(np.rot90(x.numpy(), turn, axes=(2, 3)).copy()) for turn in range(4)])
    noisy = (turned + 0.1 * torch.randn(turned.shape, generator=torch.Generator().manual_seed(3))).clamp(0, 1)
    z = model.encoder(noisy)
    torch.testing.assert_close(got.classification, F.cross_entropy(model.classifier(z), y.repeat(4)))
    turns = torch.tensor([turn for turn in range(4) for _ in range(4)])
    torch.testing.assert_close(got.auxiliary, F.cross_entropy(model.auxiliary.head(z), turns))


def test_second_view_is_the_flipped_central_crop_resized():
    x = noise_images(2, side=32)
    view = second_view(x)
    for i in range(32):
        for j in range(32):
            row, column = 2 + i * 28 // 32, 2 + j * 28 // 32
            assert torch.equal(view[:, 0, i, j], x[:, 0, row, 31 - column])
    crop = x.flip(3)[:, :, 2:30, 2:30]
    assert torch.equal(view, F.interpolate(crop, size=32, mode="nearest"))
    assert torch.equal(second_view(x, floor_indexed=True), view)


@pytest.mark.parametrize(("small", "large"), [(28, 32), (14, 16), (7, 8), (5, 11), (8, 8), (9, 6)])
def test_true_and_floor_indexed_adjoints_of_nearest_resizing(small, large):
    """True: output j goes to input floor(j n / m). PyTorch 1.4.0: input i collects outputs from floor(i m / n)."""
    gradient = torch.randn(1, 1, large, large, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def backward(resize):
        x = torch.zeros(1, 1, small, small, dtype=torch.float64, requires_grad=True)
        resize(x, (large, large)).backward(gradient)
        return x.grad[0, 0]

    true, displaced = torch.zeros(small, small).double(), torch.zeros(small, small).double()
    for a in range(large):
        for b in range(large):
            true[a * small // large, b * small // large] += gradient[0, 0, a, b]
    for i in range(small):
        for k in range(small):
            for a in range(i * large // small, (i + 1) * large // small):
                for b in range(k * large // small, (k + 1) * large // small):
                    displaced[i, k] += gradient[0, 0, a, b]
    torch.testing.assert_close(backward(nearest), true)
    torch.testing.assert_close(backward(nearest_floor_indexed), displaced)


def test_gradient_modes_of_consistency_have_equal_values_and_different_gradients():
    model = tiny_model("consistency", side=16, dtype=torch.float64)
    x = noise_images(2, side=16, dtype=torch.float64)
    values, gradients = {}, {}
    for kind in ("paper", "stop", "exact"):
        point = x.clone().requires_grad_()
        values[kind] = Consistency(gradient=kind).loss(model, point)
        (gradients[kind],) = torch.autograd.grad(values[kind].sum(), point)
    by_hand = (model(x) - model(second_view(x))).square().mean(1)
    for value in values.values():
        torch.testing.assert_close(value, by_hand)

    point = x.clone().requires_grad_()
    (fixed,) = torch.autograd.grad((model(point) - model(second_view(x)).detach()).square().mean(1).sum(), point)
    torch.testing.assert_close(gradients["stop"], fixed)

    numeric = torch.zeros_like(x)
    for index in range(x[0].numel()):
        step = torch.zeros(x[0].numel(), dtype=torch.float64)
        step[index] = 1e-6
        ahead, behind = (Consistency().loss(model, x + sign * step.reshape(x[0].shape)) for sign in (1, -1))
        numeric.view(2, -1)[:, index] = (ahead - behind) / 2e-6
    torch.testing.assert_close(gradients["exact"], numeric, atol=1e-7, rtol=1e-4)
    assert not torch.allclose(gradients["paper"], gradients["exact"])


def test_consistency_trains_both_views_of_one_noisy_image():
    model, x, y = tiny_model("consistency"), noise_images(4), torch.tensor([0, 1, 2, 3])
    got = model.auxiliary.losses(model, x, y, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    noisy = x + (0.1 * torch.randn(x.shape, generator=generator)).clamp(0, 1)  # one-sided, the sum not clipped
    one, two = model(random_view(noisy, generator)), model(second_view(noisy))
    torch.testing.assert_close(got.classification, F.cross_entropy(torch.cat([one, two]), y.repeat(2)))
    torch.testing.assert_close(got.auxiliary, (one - two).square().mean())


def test_random_views_are_crops_of_24_to_31_pixels_flipped_half_the_time():
    ramp = torch.arange(32.0).expand(1, 1, 32, 32)  # pixel (i, j) is j: a view's columns tell where they came from
    sizes, flips = set(), 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        columns = random_view(ramp, generator)[0, 0, 0]
        flipped = bool(columns[0] > columns[-1])
        flips += flipped
        columns = columns.flip(0) if flipped else columns
        size = int(columns[-1] - columns[0]) + 1
        sizes.add(size)
        assert torch.equal(columns, columns[0] + torch.arange(32) * size // 32)
    assert sizes == set(range(24, 32))
    assert 70 < flips < 130


def test_unknown_gradient_raises():
    with pytest.raises(InputError, match="'paper', 'stop', 'exact'"):
        Consistency(gradient="sotp")
