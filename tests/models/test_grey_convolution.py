"""GreyConv2d against nn.Conv2d: outputs, input gradients and second derivatives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import soap
from soap.models.grey_convolution import GreyConv2d


def both(**options: int) -> tuple[GreyConv2d, nn.Conv2d]:
    ours, theirs = GreyConv2d(1, 5, **options).double(), nn.Conv2d(1, 5, **options).double()
    theirs.load_state_dict(ours.state_dict())
    return ours.requires_grad_(False), theirs.requires_grad_(False)


@settings(max_examples=30)
@given(
    kernel_size=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    side=st.tuples(st.integers(5, 9), st.integers(5, 9)),
)
def test_gradient_is_that_of_a_convolution(kernel_size: int, stride: int, padding: int, side: tuple[int, int]) -> None:
    x = torch.rand(3, 1, *side, dtype=torch.float64, requires_grad=True)
    outputs = [layer(x) for layer in both(kernel_size=kernel_size, stride=stride, padding=padding)]
    assert torch.equal(*outputs)
    upstream = torch.randn_like(outputs[0])
    ours, theirs = (torch.autograd.grad(out, x, upstream)[0] for out in outputs)
    assert torch.allclose(ours, theirs, atol=1e-12)


def test_second_derivatives() -> None:
    layer, _ = both(kernel_size=3, stride=2, padding=1)
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x).pow(3), x)


def test_weights_that_learn_get_their_gradient() -> None:
    ours, theirs = both(kernel_size=3, stride=2, padding=1)
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64, requires_grad=True)

    def gradients(layer: nn.Conv2d) -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer.requires_grad_()(x).square().sum(), [x, *layer.parameters()])

    assert all(torch.equal(one, two) for one, two in zip(gradients(ours), gradients(theirs), strict=True))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_cnn_has_it_for_grey_images(channels: int) -> None:
    first = soap.models.build("cnn", inputs=(channels, 8, 8)).encoder[0]
    assert isinstance(first, GreyConv2d) == (channels == 1)
