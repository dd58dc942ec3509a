"""Convolutions with fixed weights, differentiated twice, against torch's own derivatives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import noise_images, tiny_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import soap
from soap.gradient_rules import Unrolled, unrolled
from soap.gradient_rules.double_backward import FixedConvolutions

LAYERS = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}


def derivatives(layer, x, way):
    """Value, gradient and the gradient of the gradient along `way`, of a loss that is not quadratic."""
    x = x.clone().requires_grad_()
    value = layer(x)
    (gradient,) = torch.autograd.grad(value.tanh().square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((gradient * way).sum(), x)
    return value.detach(), gradient.detach(), second


@st.composite
def convolutions(draw):
    """A layer with fixed weights in double precision, and a batch for it."""
    axes, transposed = draw(st.sampled_from(sorted(LAYERS)))
    groups = draw(st.integers(1, 2))
    each = st.integers(1, 3) if draw(st.booleans()) else st.tuples(*[st.integers(1, 3)] * axes)
    kernel, stride = draw(each), draw(each)
    options = {"groups": groups, "bias": draw(st.booleans()), "dilation": draw(st.integers(1, 2))}
    options["padding"] = draw(st.integers(0, 2))
    if transposed:
        options["output_padding"] = draw(st.integers(0, 1)) if options["dilation"] == 2 or stride == 3 else 0
    layer = LAYERS[axes, transposed](2 * groups, 3 * groups, kernel, stride=stride, **options)
    sides = draw(st.tuples(*[st.integers(7, 9)] * axes))
    return layer.double().requires_grad_(False), torch.randn(2, 2 * groups, *sides, dtype=torch.float64)


@settings(max_examples=80, deadline=None)
@given(convolutions())
def test_values_and_both_derivatives_are_torchs(made):
    layer, x = made
    way = torch.randn_like(x)
    wanted = derivatives(layer, x, way)
    with FixedConvolutions():
        got = derivatives(layer, x, way)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("options", [{}, {"padding": "same"}])
def test_a_layer_that_learns_gets_its_gradient(options):
    layer, x = nn.Conv2d(2, 3, 3, **options).double(), torch.randn(2, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))
    with FixedConvolutions():
        got = torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))
    for ours, theirs in zip(got, wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_a_single_image_without_its_batch_is_left_to_torch():
    layer, x = nn.Conv2d(2, 3, 3).requires_grad_(False), torch.randn(2, 5, 5, requires_grad=True)
    with FixedConvolutions():
        assert torch.equal(layer(x), layer(x.detach()))


class Kernels(TorchDispatchMode):
    """The largest side of a kernel that anything is convolved with."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.convolution.default:
            self.largest = max(self.largest, *args[1].shape[2:])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("plain", [False, True])
def test_a_step_back_computes_no_gradient_of_weights(plain, monkeypatch):
    """Such a gradient is a convolution with a kernel as large as what the layer gives."""
    if plain:  # the test sees it where it is there
        monkeypatch.setattr(unrolled, "FixedConvolutions", torch.enable_grad)
    model, x = tiny_model("rotation"), noise_images(2)
    with Kernels() as seen:
        Unrolled(model, soap.SOAP(model)).logits_and_gradient(x, lambda logits: logits.logsumexp(1))
    assert (seen.largest > 3) is plain  # the network's own kernels are of 3 x 3
