"""Energy descent against hand-made sign steps; the denoising autoencoder against its own network."""

import pytest
import torch
from tiny import noise_images, state_of, tiny_model
from torch import nn

import soap
from soap import zoo
from soap.models import Autoencoder
from soap.purifiers import EnergyDescent, Reformer


def test_steps_equal_hand_made_steps():
    model, x = tiny_model(dtype=torch.float64), noise_images(4, dtype=torch.float64)
    point = x.clone()
    for _ in range(3):
        point.requires_grad_()
        energy = -model(point).exp().sum(1).log()
        (slope,) = torch.autograd.grad(energy.sum(), point)
        point = (x + (point - 0.05 * slope.sign() - x).clamp(-0.1, 0.1)).clamp(0, 1).detach()
    out = EnergyDescent(model, 0.1, step_size=0.05, steps=3)(x)
    torch.testing.assert_close(out.x, point)
    torch.testing.assert_close(out.loss_before, -model(x).logsumexp(1))
    torch.testing.assert_close(out.loss_after, -model(point).logsumexp(1))
    assert (out.loss_after < out.loss_before).all()
    assert repr(EnergyDescent(model, 0.4)) == "EnergyDescent(eps=0.4, step_size=0.1, steps=10)"
    assert (EnergyDescent.gradient, EnergyDescent.random) == ("straight-through", False)


def test_a_linear_classifier_moves_along_the_sign_of_its_only_row():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False))
    model[1].weight.data = torch.tensor([[1.0, -2.0, 0.5, -0.1]])
    x = torch.full((1, 1, 2, 2), 0.5)
    out = EnergyDescent(model, 0.2, step_size=0.05, steps=8)(x).x  # E = -w . x: every step is -sign(-w)
    torch.testing.assert_close(out.flatten(), torch.tensor([0.7, 0.3, 0.7, 0.3]))


def test_reformer_is_the_reconstruction_and_has_an_exact_gradient():
    torch.manual_seed(0)
    model = Autoencoder(inputs=(1, 8, 8), width=2, latent=3).double().train()
    before, x = state_of(model), noise_images(3, dtype=torch.float64)
    point = x.clone().requires_grad_()
    out = Reformer(model)(point)
    torch.testing.assert_close(out.x, model(x))
    (slope,) = torch.autograd.grad(out.x.square().sum(), point)
    other = x.clone().requires_grad_()
    torch.testing.assert_close(slope, torch.autograd.grad(model(other).square().sum(), other)[0])
    assert state_of(model) == before
    assert torch.equal(Reformer(model)(x[1:2]).x, Reformer(model)(x).x[1:2])
    assert repr(Reformer(model)) == "Reformer(autoencoder)"
    assert (Reformer.gradient, Reformer.random) == ("exact", False)


def test_bundled_autoencoder_removes_noise_from_digits():
    prior, data = zoo.load_prior("autoencoder-mnist"), soap.data.load("mnist-mini").take(100)
    noisy = (data.x + 0.3 * torch.randn(data.x.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    made = Reformer(prior)(noisy).x
    assert (made - data.x).square().mean() < 0.3 * (noisy - data.x).square().mean()
    model = soap.load("mnist-cnn-no-def")
    assert (model(Reformer(prior)(data.x).x).argmax(1) == data.y).float().mean() > 0.95
    assert zoo.weights_path("autoencoder-mnist").stat().st_size < 500_000


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: EnergyDescent(lambda x: x), "expected an nn.Module from images to logits"),
        (lambda x: EnergyDescent(tiny_model(), -0.1), "eps is -0.1"),
        (lambda x: EnergyDescent(tiny_model(), steps=0), r"steps \(K\) is 0"),
        (lambda x: Reformer(lambda x: x), "expected an nn.Module from images to images"),
        (lambda x: Reformer(nn.Flatten())(x), r"expected images of shape \[2, 1, 8, 8\]"),
        (lambda x: Reformer(Autoencoder())(x), r"this model takes \[batch, 1, 28, 28\]"),
        (lambda x: Autoencoder(inputs=(1, 6, 8)), "both sides multiples of 4"),
    ],
)
def test_bad_input_raises(call, message):
    with pytest.raises(soap.InputError, match=message):
        call(noise_images(2))
