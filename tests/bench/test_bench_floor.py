"""The floor against hand-computed values."""

from itertools import pairwise

import torch
from torch import nn

import soap
from soap._runtime.isolation import frozen
from soap.bench.batches import purify_operations
from soap.bench.measures import measure_rate, operations_of


def test_a_linear_layer_by_hand():
    layer, x = nn.Linear(10, 20), torch.rand(3, 10)
    with frozen(layer):  # the gradient of the input alone
        assert operations_of(layer, x.clone().requires_grad_()) == (2 * 10 * 20, 2 * 20 * 10)
    assert operations_of(layer, x) == (2 * 10 * 20, 2 * 10 * 20)  # the weights' gradient; the input needs none
    assert operations_of(layer, x.clone().requires_grad_()) == (2 * 10 * 20, 2 * 2 * 10 * 20)


def test_the_papers_grid_on_the_fcn_by_hand():
    model = soap.load("mnist-fcn-dr")
    grid = tuple(k / 10 for k in range(11))
    widths = (784, 256, 128, 256, 784)  # encoder, then decoder
    weights = sum(a * b for a, b in pairwise(widths))
    found = purify_operations(model, torch.rand(7, 1, 28, 28), grid, gamma=0.1, T=5)
    assert found == 7 * 2 * weights * (16 + 11)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_rate_is_plausible():
    assert measure_rate(torch.device("cpu")) > 1e6
