"""The probe: purifiers with a known gradient are found exact, not exact or random."""

import random

import numpy as np
import pytest
import torch
from tiny import noise_images, state_of, tiny_model
from torch import nn
from torch.nn import functional as F

import soap
from soap.gradient_rules import probe_gradient

SIDE = 16


class Denoiser(nn.Module):
    """A small convolutional autoencoder with ReLU and sigmoid, in single precision."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.layers = nn.Sequential(
                nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()
            )

    def forward(self, x):
        return self.layers(x)


class HoldsNetwork:
    """A purifier that is not a module, checks its input's precision, and returns an object with `.x`."""

    def __init__(self):
        self.network = Denoiser()

    def __call__(self, x):
        soap.validate.inputs(x, self.network, (-1.0, 2.0))
        return soap.Purified(
            x=self.network(x), eps=x.flatten(1)[:, 0], loss_before=x.flatten(1)[:, 0], loss_after=x.flatten(1)[:, 0]
        )


DENOISE = Denoiser().eval()


def median(x):
    patches = F.unfold(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3)
    return patches.median(1).values.reshape(x.shape)


def quantised(x, levels=7):
    return (x * levels).round() / levels


def trick(x, made):
    """The values of `made` with the gradient of the identity."""
    return x + (made - x).detach()


def sign_steps(x, steps=5, gamma=0.03):
    origin = x
    for _ in range(steps):
        point = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((DENOISE(point) - point).square().sum(), point)
        x = (x - gamma * gradient.sign()).clamp(0, 1)
    return origin + (x - origin)


def gradient_steps(x):
    """Descent whose steps are themselves differentiated."""
    for _ in range(3):
        point = x if x.requires_grad else x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((DENOISE(point) - point).square().sum(), point, create_graph=True)
        x = x - 0.1 * gradient
    return x


def seeded_by_the_image(x):
    generator = torch.Generator().manual_seed(int(x.double().sum().item() * 1e6) % 2**31)
    return x + 0.3 * torch.randn(x.shape, generator=generator).to(x)


class Weakened(torch.autograd.Function):
    """The identity with a gradient scaled by 1e-12."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1e-12 * gradient


def single_only(x):
    assert x.dtype == torch.float32
    return DENOISE(x)


EXACT = {
    "identity": lambda x: x,
    "module": DENOISE,
    "closure": lambda x: DENOISE(x),
    "holds a network": HoldsNetwork(),
    "single precision only": single_only,
    "single precision inside": lambda x: DENOISE(x.float()).to(x.dtype),
    "blur": nn.AvgPool2d(3, 1, 1),
    "median": median,
    "pooling": nn.MaxPool2d(3, 1, 1),
    "clip": lambda x: (1.5 * x - 0.2).clamp(0, 1),
    "smooth steps": lambda x: x - torch.sin(8 * torch.pi * x) / (8 * torch.pi),
    "differentiated descent": gradient_steps,
}
NOT_EXACT = {
    "round": torch.round,
    "8 bits": lambda x: quantised(x, 255),
    "detached": lambda x: DENOISE(x).detach(),
    "no grad": torch.no_grad()(DENOISE),
    "through numpy": lambda x: torch.from_numpy(np.sqrt(x.numpy().clip(0))),
    "straight-through round": lambda x: trick(x, x.round()),
    "straight-through 8 levels": lambda x: trick(x, quantised(x)),
    "straight-through 8 bits": lambda x: trick(x, quantised(x, 255)),
    "straight-through 8 levels, then a network": lambda x: DENOISE(trick(x, quantised(x))),
    "straight-through network": lambda x: trick(x, DENOISE(x)),
    "quantised median": lambda x: trick(x, quantised(median(x), 15)),
    "sign steps": sign_steps,
    "seeded by the image": seeded_by_the_image,
    "weakened gradient": lambda x: DENOISE(Weakened.apply(x)),
    "NaN gradient": lambda x: x + 0 * (x - x.detach()).abs().sqrt(),
}
OWN = torch.Generator().manual_seed(0)
RANDOM = {
    "noise": (lambda x: x + 0.3 * torch.randn_like(x), True),
    "little noise": (lambda x: x + 0.01 * torch.randn_like(x), True),
    "noise, then a network": (lambda x: DENOISE((x + 0.3 * torch.randn_like(x)).clamp(0, 1)), True),
    "shifts": (lambda x: x.roll(tuple(torch.randint(-2, 3, (2,)).tolist()), (2, 3)), True),
    "own generator": (lambda x: x + 0.3 * torch.randn(x.shape, generator=OWN).to(x), True),
    "numpy": (lambda x: x + 0.3 * torch.from_numpy(np.random.randn(*x.shape)).to(x), True),
    "python": (lambda x: x * (0.5 + random.random()), True),
    "noise, then rounding": (lambda x: (x + 0.3 * torch.randn_like(x)).round(), False),
}


def classifier():
    return tiny_model(side=SIDE)


def probed(purifier, **settings):
    return probe_gradient(classifier(), purifier, noise_images(8, side=SIDE), **settings)


@pytest.mark.parametrize("name", EXACT)
def test_the_gradient_of_differentiable_purifiers_is_exact(name):
    found = probed(EXACT[name])
    assert (found.exact, found.random, found.repeatable) == (True, False, True), found
    assert found.samples == found.samples_with_gradient > 0
    assert "agrees" in found.reason


@pytest.mark.parametrize("name", NOT_EXACT)
def test_the_gradient_of_other_purifiers_is_not_exact(name):
    found = probed(NOT_EXACT[name])
    assert (found.exact, found.random) == (False, False), found
    assert found.reason


@pytest.mark.parametrize("name", RANDOM)
def test_random_purifiers_are_found_and_their_gradient_compared_for_equal_draws(name):
    purifier, is_exact = RANDOM[name]
    found = probed(purifier)
    assert (found.exact, found.random, found.repeatable) == (is_exact, True, True), found


def test_double_precision_is_used_for_networks_in_single_precision():
    for name in ("module", "closure", "holds a network"):
        assert probed(EXACT[name]).precision == "float64"
    assert probed(EXACT["single precision only"]).precision == "float32"


def test_a_purifier_that_depends_on_earlier_calls_is_random_and_not_repeatable():
    calls = []

    def purify(x):
        calls.append(1)
        return x if len(calls) == 1 else 1 - x

    found = probed(purify)
    assert (found.random, found.repeatable) == (True, False)


def test_a_network_that_purifies_inside_is_probed_as_a_whole():
    x = noise_images(4, side=SIDE)
    assert probe_gradient(nn.Sequential(DENOISE, classifier()), None, x).exact
    assert not probe_gradient(nn.Sequential(nn.Hardtanh(), Rounding(), classifier()), None, x).exact


class Rounding(nn.Module):
    def forward(self, x):
        return trick(x, x.round())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["median", "straight-through 8 bits", "sign steps"])
def test_the_result_does_not_depend_on_the_seed(name, seed):
    assert probed((EXACT | NOT_EXACT)[name], seed=seed).exact == (name in EXACT)


def test_vectors_and_other_ranges_are_probed_too():
    network = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    x = 255 * torch.rand(6, 20)
    assert probe_gradient(network, lambda x: x / 2, x).exact
    assert not probe_gradient(network, lambda x: trick(x, x.round()), x).exact


def test_the_probe_repeats_and_changes_no_state(unchecked_shapes):
    model, own = tiny_model(side=SIDE).train(), OWN.get_state()
    x = noise_images(8, side=SIDE)
    before, kept = state_of(model), x.clone()
    python_state, numpy_state = random.getstate(), np.random.get_state()[1].tolist()
    for purifier, _ in RANDOM.values():
        assert probe_gradient(model, purifier, x) == probe_gradient(model, purifier, x)
    assert state_of(model) == before
    assert torch.equal(x, kept)
    assert torch.equal(OWN.get_state(), own)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == (python_state, numpy_state)
