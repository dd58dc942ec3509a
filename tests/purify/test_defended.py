"""A purifier before a classifier, as other libraries see it."""

import pytest
import torch
from tiny import noise_images, tiny_model

import soap


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_defended_classifies_the_purified_image_in_any_context(context):
    model = tiny_model()
    purify = soap.Purifier(model)
    robust = soap.Defended(model, purify)
    x = noise_images(3)
    expected = model(purify(x).x)
    with context():
        assert torch.equal(robust(noise_images(3)), expected)


def test_defended_passes_gradients_straight_through_and_stays_in_evaluation_mode():
    model = tiny_model()
    purify = soap.Purifier(model)
    robust = soap.Defended(model, purify).train()
    assert not any(module.training for module in robust.modules())
    x = noise_images(3).requires_grad_()
    robust(x).square().sum().backward()
    point = purify(x).x.requires_grad_()
    model(point).square().sum().backward()
    torch.testing.assert_close(x.grad, point.grad)
