"""Fused batch norm, addition and ReLU against torch's separate layers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from soap._runtime.isolation import frozen
from soap.models.batch_norm import Norm, RectifiedNorm

LAYOUTS = (torch.contiguous_format, torch.channels_last)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def separate(norm, x, summand):
    """Return the same result from torch's own layers."""
    plain = nn.BatchNorm2d(norm.num_features).to(x.device).train(norm.training)
    plain.load_state_dict(norm.state_dict())
    out = plain(x) if summand is None else plain(x) + summand
    return F.relu(out) if norm.rectifies else out


def trained(kind, channels=6, device="cpu"):
    """Return a layer whose parameters and statistics differ from the defaults."""
    generator = torch.Generator().manual_seed(1)
    norm = kind(channels)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.copy_(torch.randn(channels, generator=generator))
        norm.running_var.copy_(torch.rand(channels, generator=generator) + 0.1)
    return norm.to(device).eval()


def images(seed, device="cpu", layout=torch.contiguous_format, channels=6):
    x = torch.randn(3, channels, 5, 4, generator=torch.Generator().manual_seed(seed))
    return x.to(device).to(memory_format=layout)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [Norm, RectifiedNorm])
@pytest.mark.parametrize("with_summand", [False, True])
def test_frozen_layer_equals_separate_layers(kind, with_summand, layout, device):
    norm = trained(kind, device=device)
    x, upstream = images(2, device, layout), images(4, device)
    summand = images(3, device, layout) if with_summand else None
    inputs = [tensor.clone().requires_grad_() for tensor in (x, summand) if tensor is not None]
    mine = [tensor.clone().requires_grad_() for tensor in (x, summand) if tensor is not None]
    expected = separate(norm, inputs[0], inputs[1] if with_summand else None)
    with frozen(norm):
        out = norm(mine[0], mine[1] if with_summand else None)
        gradients = torch.autograd.grad(out, mine, upstream)
    if device == "cuda" and layout is torch.channels_last:  # the layout the networks use there: equal bit for bit
        assert torch.equal(out, expected)
        for ours, theirs in zip(gradients, torch.autograd.grad(expected, inputs, upstream), strict=True):
            assert torch.equal(ours, theirs)
        return
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, inputs, upstream))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Norm, RectifiedNorm])
def test_frozen_layer_has_second_derivatives(kind, device):
    norm = trained(kind, device=device)
    x, summand, upstream = images(2, device), images(3, device), images(4, device)

    def second(function):
        points = [tensor.clone().requires_grad_() for tensor in (x, summand, upstream)]
        first = torch.autograd.grad(function(*points[:2]), points[:2], points[2], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), points[2])[0]

    expected = second(lambda x, summand: separate(norm, x, summand))
    with frozen(norm):
        torch.testing.assert_close(second(norm), expected)


@pytest.mark.parametrize("training", [False, True])
def test_trainable_layer_gets_gradients_and_updates_statistics(training):
    norm, x = trained(RectifiedNorm).train(training), images(2)
    before = norm.running_mean.clone()
    expected = separate(norm, x, None)
    out = norm(x)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert norm.weight.grad is not None
    assert torch.equal(norm.running_mean, before) is not training


def test_frozen_layer_does_not_modify_inputs():
    norm, x, summand = trained(RectifiedNorm), images(2), images(3)
    kept = x.clone(), summand.clone()
    with frozen(norm):
        norm(x, summand)
    assert torch.equal(x, kept[0])
    assert torch.equal(summand, kept[1])
