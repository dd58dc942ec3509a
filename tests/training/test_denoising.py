"""Objectives of denoising models: losses against plain formulas, training that lowers them, and a resumed run."""

import pytest
import torch

import soap
from soap import recipes
from soap.models import Autoencoder
from soap.models.ddpm import DDPM
from soap.recipes import generative
from soap.training import GenerativeSchedule
from soap.training.objectives import Denoising, NoisePrediction

SCHEDULE = GenerativeSchedule(epochs=1, lr=3e-3, betas=(0.9, 0.99), average=0.9)
RECIPE = """
name = "trial"
data = "mnist-mini"
[model]
kind = "{kind}"
{model}
[training]
epochs = 2
lr = 1e-3
batch = 8
"""
SMALL = {"ddpm": "width = 8\npatch = 4\nmultipliers = [1]", "autoencoder": "width = 2\nlatent = 3"}


def test_noise_prediction_is_the_mean_squared_error_of_the_noise():
    torch.manual_seed(0)
    model, x = DDPM(inputs=(1, 8, 8), width=8, steps=10), torch.rand(5, 1, 8, 8)
    torch.nn.init.normal_(model.network.leave[2].weight)
    losses = NoisePrediction(model, SCHEDULE).loss(model, x, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    t = torch.randint(1, 11, (5,), generator=generator)
    noise = torch.randn(5, 1, 8, 8, generator=generator)
    for k in range(5):
        abar = model.abar[t[k]]
        noised = abar.sqrt() * (2 * x[k] - 1) + (1 - abar).sqrt() * noise[k]
        expected = (model(noised[None], t[k : k + 1])[0] - noise[k]).square().mean()
        torch.testing.assert_close(losses[k], expected)


def test_every_step_of_the_diffusion_is_trained():
    seen = []

    class Watched(DDPM):
        def forward(self, x, t):
            seen.extend(t.tolist())
            return super().forward(x, t)

    model = Watched(inputs=(1, 8, 8), width=8, steps=5)
    NoisePrediction(model, SCHEDULE).loss(model, torch.rand(200, 1, 8, 8), torch.Generator().manual_seed(0))
    assert set(seen) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_denoising_compares_with_the_image_without_noise(noise):
    model, x = Autoencoder(inputs=(1, 8, 8), width=2, latent=3), torch.rand(4, 1, 8, 8)
    losses = Denoising(model, SCHEDULE, noise=noise).loss(model, x, torch.Generator().manual_seed(1))
    drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    expected = (model((x + noise * drawn).clamp(0, 1)) - x).square().mean((1, 2, 3))
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("kind", SMALL)
def test_training_lowers_the_loss(kind):
    torch.manual_seed(0)
    x = soap.data.load("mnist-mini", "train").x[:64]
    if kind == "ddpm":
        objective = NoisePrediction(DDPM(width=16, patch=4, multipliers=(1,)), SCHEDULE)
    else:
        objective = Denoising(Autoencoder(width=4, latent=8), SCHEDULE)
    generator = torch.Generator().manual_seed(0)
    losses = [next(iter(objective.step(x, generator, 0.0).values())).item() for _ in range(60)]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    made = objective.product()
    assert not made.training
    assert type(made) is type(objective.networks.model)


@pytest.mark.parametrize("kind", SMALL)
def test_a_resumed_training_has_the_same_weights(kind, tmp_path):
    recipe = generative.parse(RECIPE.format(kind=kind, model=SMALL[kind]), "test")
    images, cpu = soap.data.load("mnist-mini", "train").take(32), torch.device("cpu")
    recipes.make(recipe, images, out=tmp_path / "whole", device=cpu)
    steps = iter(range(10))
    stopped = recipes.make(recipe, images, out=tmp_path / "parts", device=cpu, stop=lambda: next(steps) == 4)
    assert not stopped.finished
    assert recipes.make(recipe, images, out=tmp_path / "parts", device=cpu, resume=True).finished
    whole, parts = (
        soap.zoo.load_prior(tmp_path / name / "last.safetensors").state_dict() for name in ("whole", "parts")
    )
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_negative_noise_raises():
    with pytest.raises(soap.InputError, match="noise is -1"):
        Denoising(Autoencoder(), SCHEDULE, noise=-1.0)
