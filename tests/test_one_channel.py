"""Convolutions from and to one channel, against torch's own values and derivatives."""

from contextlib import ExitStack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from soap._runtime import one_channel
from soap._runtime.one_channel import MIN_BATCH, fast_one_channel

GREY = torch.zeros(MIN_BATCH, 1, 4, 4)


def derivatives(layer, x, way):
    """Value, gradient, and gradient of the gradient along `way`, of a loss that is not quadratic."""
    x = x.clone().requires_grad_()
    value = layer(x)
    (gradient,) = torch.autograd.grad(value.tanh().square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((gradient * way).sum(), x)
    return value.detach(), gradient.detach(), second


@st.composite
def layers(draw):
    """A layer with fixed weights that has one channel on one side, and a batch for it."""
    each = st.integers(1, 3) if draw(st.booleans()) else st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride = draw(each), draw(each)
    options = {"bias": draw(st.booleans()), "dilation": draw(st.integers(1, 2)), "padding": draw(st.integers(0, 2))}
    if draw(st.booleans()):
        options["output_padding"] = draw(st.integers(0, 1)) if options["dilation"] == 2 or stride == 3 else 0
        layer, channels = nn.ConvTranspose2d(3, 1, kernel, stride=stride, **options), 3
    else:
        layer, channels = nn.Conv2d(1, 3, kernel, stride=stride, **options), 1
    sides = draw(st.tuples(st.integers(7, 9), st.integers(7, 9)))
    return layer.requires_grad_(False), torch.randn(MIN_BATCH, channels, *sides)


@settings(max_examples=80, deadline=None)
@given(layers())
def test_values_and_both_derivatives_equal_torch(made):
    layer, x = made
    way = torch.randn_like(x)
    wanted = derivatives(layer, x, way)
    with fast_one_channel(GREY):
        got = derivatives(layer, x, way)
        with torch.no_grad():
            plain = layer(x)
    for ours, theirs in zip((*got, plain), (*wanted, wanted[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [torch.float32, torch.float64])
def test_other_layers_are_left_to_torch(way, monkeypatch):
    monkeypatch.delattr(one_channel._ToOneChannel, "forward")
    monkeypatch.delattr(one_channel._FromOneChannel, "forward")
    others = [nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 3), nn.Conv2d(1, 2, 3, padding="same")]
    others += [nn.Conv2d(4, 4, 3, groups=4)]
    if way == torch.float64:
        others += [nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(2, 1, 3)]
    with fast_one_channel(GREY):
        for layer in others:
            channels = layer.in_channels
            layer.requires_grad_(False).to(way)(torch.randn(MIN_BATCH, channels, 5, 5, dtype=way))
        nn.Conv2d(1, 2, 3).requires_grad_(False)(torch.randn(MIN_BATCH - 1, 1, 5, 5))
        nn.Conv2d(1, 2, 3)(torch.randn(MIN_BATCH, 1, 5, 5)).sum().backward()  # trainable


def depth(*contexts):
    with ExitStack() as stack:
        for x in contexts:
            stack.enter_context(fast_one_channel(x))
        return len(torch.overrides._get_current_function_mode_stack())


def test_contexts_count_once_and_only_for_enough_grey_images():
    assert depth(GREY) == depth(GREY, GREY) == 1
    assert depth(GREY[1:]) == depth(torch.zeros(MIN_BATCH, 3, 4, 4)) == depth(torch.zeros(MIN_BATCH, 16)) == 0
    with fast_one_channel(GREY[:2], copies=MIN_BATCH // 2):
        assert torch.overrides._get_current_function_mode_stack()
