"""StolenCopy: it uses only labels, at most as many as allowed, and its results break the model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from soap.attacks import StolenCopy, fooled


class Blind(nn.Module):
    """Predicts which half of the image is brighter, as a one-hot label without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        left, right = x[..., :8].flatten(1).mean(1), x[..., 8:].flatten(1).mean(1)
        return nn.functional.one_hot((right > left).long(), 2).double() * 3


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 1, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_substitute_attack_breaks_a_model_without_gradient() -> None:
    model, x = Blind(), images(80)
    y = model(x).argmax(1)
    attack = StolenCopy(eps=0.1, queries=320, steps=10)
    x_adv = attack(model, x, y)
    assert (x_adv - x).abs().max() <= 0.1 + 1e-12
    assert fooled(model, x_adv, y).double().mean() > 0.9
    noise = (x + 0.1 * torch.randn_like(x).sign()).clamp(0, 1)
    assert fooled(model, noise, y).double().mean() < 0.5
    assert torch.equal(x_adv, attack(model, x, y))


@settings(max_examples=8, deadline=None)
@given(n=st.integers(1, 12), queries=st.integers(2, 40))
def test_number_of_queries_is_at_most_the_limit(n: int, queries: int) -> None:
    model, x = Blind(), images(n)
    y = torch.zeros(n, dtype=torch.int64)
    x_adv = StolenCopy(eps=0.05, queries=queries, steps=1).perturb(model, x, y)
    assert x_adv.shape == x.shape
    assert model.asked <= queries + 1 + min(8, n)  # plus the queries that check the model


def test_substitute_attack_works_on_tabular_inputs() -> None:
    rows = torch.rand(60, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        return nn.functional.one_hot((x[:, 0] > 0.5).long(), 3).double() * 3

    y = model(rows).argmax(1)
    x_adv = StolenCopy(eps=0.3, queries=480, steps=10)(model, rows, y)
    assert fooled(model, x_adv, y).double().mean() > 0.3


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"eps": 0.0}, "eps"), ({"queries": 1}, "queries"), ({"norm": "l3"}, "norm"), ({"steps": 0}, "steps")],
)
def test_invalid_settings_raise(changes: dict[str, Any], told: str) -> None:
    make: Callable[..., StolenCopy] = StolenCopy
    with pytest.raises(ValueError, match=told):
        make(**{"eps": 0.1, **changes})
