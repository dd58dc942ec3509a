import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from soap.errors import InputError
from soap.models import cnn
from soap.models.interval_bounds import is_certified, layers_in_a_row, logits_and_margins


def small_network(seed: int, inputs: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(inputs, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 4)).double()
    network[2].running_mean.normal_()
    network[2].running_var.uniform_(0.5, 2)
    network[2].weight.data.normal_()
    return network.eval()


def margins_at(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = network(x)
    return logits.gather(1, y[:, None]) - logits


def test_bounds_of_a_linear_network_are_the_exact_minimum_over_the_corners():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3)).double()
    low, y = torch.rand(5, 4).double(), torch.tensor([0, 1, 2, 0, 1])
    high = low + torch.rand(5, 4).double()
    corners = [torch.where(torch.tensor(bits).bool(), high, low) for bits in itertools.product((0, 1), repeat=4)]
    exact = torch.stack([margins_at(network, corner, y) for corner in corners]).amin(0)
    _, margins = logits_and_margins(network, low, low, high, y)
    torch.testing.assert_close(margins, exact)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), width=st.floats(0, 0.6))
def test_no_point_of_the_box_has_a_smaller_margin_than_the_bound(seed, width):
    network = small_network(seed)
    low = torch.rand(8, 3).double()
    high = low + width * torch.rand(8, 3).double()
    y = torch.randint(0, 4, (8,))
    _, margins = logits_and_margins(network, low, low, high, y)
    for _ in range(50):
        point = low + (high - low) * torch.rand_like(low).round()
        assert (margins_at(network, point, y) >= margins - 1e-9).all()


def test_a_box_of_one_point_has_the_margins_of_the_point():
    network = small_network(1)
    x, y = torch.rand(6, 3).double(), torch.randint(0, 4, (6,))
    logits, margins = logits_and_margins(network, x, x, x, y)
    torch.testing.assert_close(logits, network(x))
    torch.testing.assert_close(margins, margins_at(network, x, y))


def test_certified_samples_survive_every_corner_of_a_small_convolutional_network():
    torch.manual_seed(2)
    parts = cnn(inputs=(1, 8, 8), classes=3)
    network = nn.Sequential(parts.encoder, parts.classifier).eval()
    low = torch.rand(64, 1, 8, 8)
    high = low.clone()
    high[:, :, 2, 2:5] += 0.002
    y = network(low).argmax(1)
    certified = is_certified(network, low, high, y)
    assert certified.any()
    for bits in itertools.product((0, 1), repeat=3):
        corner = low.clone()
        corner[:, 0, 2, 2:5] += 0.002 * torch.tensor(bits)
        assert (network(corner).argmax(1) == y)[certified].all()
    assert not is_certified(network, low, high, (y + 1) % 3).any()


def test_training_mode_uses_the_statistics_of_the_clean_batch():
    network = small_network(3).train()
    x, y = torch.rand(16, 3).double(), torch.randint(0, 4, (16,))
    logits, margins = logits_and_margins(network, x, x, x, y)
    torch.testing.assert_close(margins, logits.gather(1, y[:, None]) - logits)
    margins.sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_layers_of_a_joint_model_are_those_of_encoder_and_classifier():
    parts = cnn()
    joint = nn.Module()
    joint.encoder, joint.classifier = parts.encoder, parts.classifier
    assert list(layers_in_a_row(joint)) == [*parts.encoder, *parts.classifier]


def test_a_layer_without_bounds_is_refused_by_name():
    network = nn.Sequential(nn.Softmax(1), nn.Linear(3, 2))
    x = torch.rand(1, 3)
    with pytest.raises(InputError, match="Softmax"):
        logits_and_margins(network, x, x, x, torch.tensor([0]))
