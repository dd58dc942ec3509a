"""A purifier before a classifier, as other libraries see it."""

import pytest
import torch
from tiny import noise_images, tiny_model
from torch import nn

import soap


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_defended_classifies_the_purified_image_in_any_context(context):
    model = tiny_model()
    purify = soap.SOAP(model)
    robust = soap.Defence(model, purify)
    x = noise_images(3)
    expected = model(purify(x).x)
    with context():
        assert torch.equal(robust(noise_images(3)), expected)


def test_defended_passes_gradients_straight_through_and_stays_in_evaluation_mode():
    model = tiny_model()
    purify = soap.SOAP(model)
    robust = soap.Defence(model, purify).train()
    assert not any(module.training for module in robust.modules())
    x = noise_images(3).requires_grad_()
    robust(x).square().sum().backward()
    point = purify(x).x.requires_grad_()
    model(point).square().sum().backward()
    torch.testing.assert_close(x.grad, point.grad)


def test_whoever_switches_the_model_to_training_later_gets_the_same_answers():
    """Its batch norms took the batch's statistics and counted it."""
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 3))
    robust, x = soap.Defence(model, soap.purifiers.AntiAdversary(model)), noise_images(4)
    wanted, state = robust(x), {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    assert torch.equal(robust(x), wanted)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    robust(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model[-1].parameters())


def test_a_purifier_may_be_any_network_and_is_passed_straight_through():
    model, blur = tiny_model(), nn.AvgPool2d(3, stride=1, padding=1)
    x = noise_images(3).requires_grad_()
    soap.Defence(model, blur)(x).square().sum().backward()
    point = blur(x).detach().requires_grad_()
    model(point).square().sum().backward()
    torch.testing.assert_close(x.grad, point.grad)
    with pytest.raises(soap.InputError, match=r"the purifier returned .*, want purified images of shape"):
        soap.Defence(model, lambda x: x[:1])(x)
