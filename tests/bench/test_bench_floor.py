"""The floor against sums done by hand."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import soap
from soap._runtime.isolation import frozen
from soap.bench.floor import Rates, Work, cost_of, floor_of, measure_rates
from soap.bench.purification import least_work


def test_a_linear_layer_by_hand():
    layer = nn.Linear(10, 20)
    with frozen(layer):  # the gradient of the input alone
        cost = cost_of(layer, layer, torch.rand(3, 10).requires_grad_())
    assert cost.forward.operations == 2 * 10 * 20
    assert cost.backward.operations == 2 * 20 * 10
    assert cost.forward.bytes == cost.backward.bytes == 4 * (10 + 20)
    assert cost.weights == 4 * (10 * 20 + 20)
    work = cost.forwards(6, 2)
    assert work == Work(operations=6 * 400, bytes=6 * 120 + 2 * 880)


def test_parameter_gradients_count_if_required():
    layer = nn.Linear(10, 20)
    cost = cost_of(layer, layer, torch.rand(3, 10))
    assert cost.backward.operations == 2 * 10 * 20  # the weights' gradient; the input needs none
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_only_called_product_layers_count():
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(8, 8)).eval()
    called = network[:3]
    cost = cost_of(called, network, torch.rand(2, 1, 8, 8))
    assert cost.forward.operations == 2 * 9 * 4 * 64
    assert cost.forward.bytes == 4 * (64 + 4 * 64)
    assert cost.weights == 4 * (9 * 4 + 4)


@pytest.mark.parametrize(("work", "seconds", "bound"), [((8, 1), 4, "operations"), ((8, 100), 20, "bytes")])
def test_the_larger_time_is_the_floor(work, seconds, bound):
    operations, count = work
    got = floor_of(Work(operations=operations, bytes=count), Rates(operations=2, bytes=5))
    assert (got.seconds, got.bound) == (seconds, bound)


def test_the_papers_grid_on_the_fcn_by_hand():
    model = soap.load("mnist-fcn-dr")
    grid = tuple(k / 10 for k in range(11))
    work = least_work(model, torch.rand(7, 1, 28, 28), grid, gamma=0.1, T=5)
    widths = (784, 256, 128, 256, 784)  # encoder, then decoder
    weights = sum(a * b for a, b in pairwise(widths))
    assert work.operations == 7 * 2 * weights * (16 + 11)
    moved = sum(a + b for a, b in pairwise(widths))
    biases = sum(widths[1:])
    assert work.bytes == 4 * (7 * moved * (16 + 11) + (weights + biases) * (6 + 5))


def test_rates_are_plausible():
    rates = measure_rates(torch.device("cpu"))
    assert rates.operations > 1e6
    assert rates.bytes > 1e6
