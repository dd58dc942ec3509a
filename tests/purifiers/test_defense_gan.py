"""Defense-GAN against a slow plain loop, and recovery of the generator's own images."""

import copy
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import noise_images, state_of, tiny_model
from torch import nn

import soap
from soap import zoo
from soap._runtime import seeding
from soap._runtime.isolation import preserved_random_state
from soap.gradient_rules import StraightThrough
from soap.models import Generator
from soap.purifiers import DefenseGAN, defense_gan


@functools.cache
def tiny_generator(dtype: torch.dtype = torch.float64) -> Generator:
    """Untrained, with batch-norm statistics as after training, and enough contrast to distinguish images."""
    with preserved_random_state(), torch.no_grad():
        torch.manual_seed(1)
        made = Generator(latent=3, width=4, inputs=(1, 8, 8)).to(dtype)
        made.layers[-2].weight.mul_(4)
        for _ in range(60):
            made(torch.randn(200, 3, dtype=dtype))
    return made.eval()


GENTLE = {"step_size": 2.0, "momentum": 0.5}


def slow(generator, x, *, steps, starts, step_size, momentum, seed):
    """One image and one start at a time, as in the paper."""
    draws = torch.Generator().manual_seed(seeding.seed_for(seed, 0))
    points = torch.randn(starts, generator.latent, generator=draws, dtype=torch.float64)
    rows = []
    for image in x:
        tried = []
        for start in points:
            z, velocity = start.clone(), torch.zeros_like(start)
            first = ((generator(z[None])[0] - image) ** 2).mean()
            for k in range(steps):
                z = z.detach().requires_grad_()
                error = ((generator(z[None])[0] - image) ** 2).mean()
                velocity = momentum * velocity + torch.autograd.grad(error, z)[0]
                z = z - (step_size / 10 if k >= 0.8 * steps else step_size) * velocity
            made = generator(z[None])[0].detach()
            tried.append((((made - image) ** 2).mean().item(), first.item(), made))
        after, _, made = min(tried, key=lambda one: one[0])
        rows.append((made, (made - image).abs().max().item(), min(one[1] for one in tried), after))
    return rows


@pytest.mark.parametrize(
    "wanted",
    [
        {"steps": 1, "starts": 1, "step_size": 1.0, "momentum": 0.0, "seed": 0},
        {"steps": 7, "starts": 3, "step_size": 2.0, "momentum": 0.7, "seed": 5},
        {"steps": 20, "starts": 2, "step_size": 10.0, "momentum": 0.3, "seed": 1},
    ],
)
def test_result_equals_a_slow_loop(wanted):
    x = noise_images(4, dtype=torch.float64)
    out = DefenseGAN(tiny_generator(), **wanted)(x)
    for k, (image, eps, before, after) in enumerate(slow(tiny_generator(), x, **wanted)):
        assert torch.allclose(out.x[k], image, atol=1e-9)
        assert out.eps[k].item() == pytest.approx(eps)
        assert out.loss_before[k].item() == pytest.approx(before)
        assert out.loss_after[k].item() == pytest.approx(after)


class Stretched(nn.Module):
    """A user's generator with values outside [0, 1]."""

    def __init__(self):
        super().__init__()
        self.inner, self.latent, self.input_shape = tiny_generator(), 3, (1, 8, 8)

    def forward(self, z):
        return 8 * self.inner(z) - 4


def test_images_are_clipped_to_the_unit_interval():
    x = noise_images(3, dtype=torch.float64)
    out = DefenseGAN(Stretched(), steps=3, starts=2)(x)
    assert 0 <= out.x.min() < out.x.max() <= 1
    torch.testing.assert_close(out.loss_after, (out.x - x).square().flatten(1).mean(1))


@functools.cache
def six_purified() -> soap.Purified:
    return DefenseGAN(tiny_generator(), steps=5, starts=3, **GENTLE)(noise_images(6, dtype=torch.float64))


@settings(max_examples=15)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.sampled_from([None, 40_000]))
def test_result_does_not_depend_on_other_samples(rows, max_memory):
    x, whole = noise_images(6, dtype=torch.float64), six_purified()
    part = DefenseGAN(tiny_generator(), steps=5, starts=3, **GENTLE, max_memory=max_memory)(x[rows])
    for name in ("x", "eps", "loss_before", "loss_after"):
        assert torch.allclose(getattr(part, name), getattr(whole, name)[rows], atol=1e-10), name


@functools.cache
def nine_purified() -> torch.Tensor:
    return DefenseGAN(tiny_generator(torch.float32), steps=3, starts=3)(noise_images(9)).x


@settings(max_examples=40)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.sampled_from([1, 2, 8]))
def test_result_is_equal_to_the_last_bit_in_any_batch(rows, at_once):
    x, purify, whole = noise_images(9), DefenseGAN(tiny_generator(torch.float32), steps=3, starts=3), nine_purified()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defense_gan.MAX_CONCURRENT_IMAGES, "cpu", at_once)
        assert torch.equal(purify(x[rows]).x, whole[rows])


def test_images_of_the_generator_are_recovered():
    z = torch.randn(8, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    x = tiny_generator()(z).detach()
    out = DefenseGAN(tiny_generator(), steps=200, starts=10)(x)
    assert (out.loss_after < 1e-6).all()
    assert out.eps.max() < 0.01
    # Added noise is removed.
    noisy = (x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(8))).clamp(0, 1)
    again = DefenseGAN(tiny_generator(), steps=200, starts=10)(noisy).x
    assert (again - x).square().mean() < 0.3 * (noisy - x).square().mean()


def test_max_memory_splits_the_batch(monkeypatch):
    sizes = []
    project = DefenseGAN._project
    monkeypatch.setitem(defense_gan.MAX_CONCURRENT_IMAGES, "cpu", 100)
    monkeypatch.setattr(DefenseGAN, "_project", lambda self, x, z: (sizes.append(len(x)), project(self, x, z))[1])
    x = noise_images(5, dtype=torch.float64)
    DefenseGAN(tiny_generator(), steps=2, starts=3, max_memory=40_000)(x)
    assert sum(sizes) == 5
    assert 1 < max(sizes) < 5
    with pytest.raises(soap.InputError, match="max_memory is 10 bytes, but one image needs about"):
        DefenseGAN(tiny_generator(), max_memory=10)(x)


def test_model_and_inputs_do_not_change():
    generator = copy.deepcopy(tiny_generator(torch.float32)).train()
    before, x = state_of(generator), noise_images(3)
    purify = DefenseGAN(generator, steps=3, starts=2)
    one = purify(x)
    assert state_of(generator) == before
    assert torch.equal(x, noise_images(3))
    assert torch.equal(one.x, purify(x).x)
    assert not one.x.requires_grad
    other = DefenseGAN(generator, steps=3, starts=2, seed=1)(x)
    assert not torch.equal(one.x, other.x)
    with torch.no_grad():
        assert torch.equal(purify(x).x, one.x)
    with torch.inference_mode():
        assert torch.equal(purify(noise_images(3)).x, one.x)


def test_defence_with_defense_gan_can_be_attacked():
    model, generator = tiny_model(), tiny_generator(torch.float32)
    purify = DefenseGAN(generator, steps=3, starts=2)
    x, y = noise_images(4), torch.arange(4)
    assert torch.equal(soap.Defence(model, purify)(x), model(purify(x).x))
    adversarial = soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2)(StraightThrough(model, purify), x, y)
    assert 0 < (adversarial - x).abs().max() <= 0.1 + 1e-6


def test_repr_shows_every_setting():
    assert repr(DefenseGAN(tiny_generator(), steps=3, starts=2, step_size=0.5, momentum=0.1, seed=4)) == (
        "DefenseGAN(generator, steps=3, starts=2, step_size=0.5, momentum=0.1, seed=4)"
    )


@pytest.mark.gpu
def test_gpu_replay_equals_cpu(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    generator = tiny_generator(torch.float32)
    x = noise_images(7)
    here = DefenseGAN(generator, steps=10, starts=4, **GENTLE)(x)
    there = DefenseGAN(generator.to("cuda"), steps=10, starts=4, **GENTLE)
    for _ in range(2):
        out = there(x.to("cuda"))
        assert torch.allclose(out.x.cpu(), here.x, atol=1e-3)
        assert torch.allclose(out.loss_after.cpu(), here.loss_after, rtol=1e-2)
    generator.to("cpu")


@pytest.mark.gpu
def test_gpu_result_does_not_depend_on_the_batch():
    prior, x = zoo.load_prior("defense-gan-mnist", device="cuda"), noise_images(100, side=28).to("cuda")
    purify = DefenseGAN(prior, **prior.purification)
    whole = purify(x).x
    for size in (1, 7, 32):
        assert torch.equal(torch.cat([purify(part).x for part in x[:37].split(size)]), whole[:37]), size


class Cut(nn.Module):
    """A generator that detaches its output."""

    latent, input_shape = 3, (1, 8, 8)

    def forward(self, z):
        return z.detach().mean(1).reshape(-1, 1, 1, 1).expand(-1, 1, 8, 8)


BAD = [
    (lambda g, x: DefenseGAN(Cut())(x), "carries no gradient to its input.*differentiable in its input"),
    (lambda g, x: DefenseGAN(g)(x * float("nan")), "NaN or infinite"),
    (lambda g, x: DefenseGAN(g)(x * 255), r"it looks like 0\.\.255, divide by 255"),
    (lambda g, x: DefenseGAN(g)(x[:, :, :5]), r"this model takes \[batch, 1, 8, 8\]"),
    (lambda g, x: DefenseGAN(g)(x.repeat(1, 3, 1, 1)), r"got a batch of shape \[2, 3, 8, 8\].*\[batch, 1, 8, 8\]"),
    (lambda g, x: DefenseGAN(g)(x.float()), "the input is torch.float32 but the model's parameters are torch.float64"),
    (lambda g, x: DefenseGAN(g)(x[:0]), "empty batch"),
    (lambda g, x: DefenseGAN(g, steps=0), r"steps \(L\) is 0"),
    (lambda g, x: DefenseGAN(g, starts=0), r"starts \(R\) is 0"),
    (lambda g, x: DefenseGAN(g, step_size=0.0), "step_size is 0.0"),
    (lambda g, x: DefenseGAN(g, momentum=1.0), "momentum is 1.0"),
    (lambda g, x: DefenseGAN(g, seed=-1), "seed is -1"),
    (lambda g, x: DefenseGAN(nn.Identity()), "got Identity as the generator, expected a module"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_raises(call, message):
    before = state_of(tiny_generator())
    with pytest.raises(soap.InputError, match=message):
        call(tiny_generator(), noise_images(2, dtype=torch.float64))
    assert state_of(tiny_generator()) == before
