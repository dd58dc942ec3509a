"""BitFlips: the optimum of a linear model behind rounding, and all single flips of a network."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import PGD, BitFlips, margin
from soap.auxiliary.binarity import rounded
from soap.errors import InputError


class Rounding(nn.Module):
    """A network behind rounding."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(rounded(x))
        return logits


def problem(values: int, *, hidden: int = 0) -> tuple[Rounding, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(values, hidden), nn.Tanh(), nn.Linear(hidden, 3)) if hidden else (
        nn.Sequential(nn.Flatten(), nn.Linear(values, 2))
    )  # fmt: skip
    model = Rounding(network).double()
    x = torch.rand(12, 1, 1, values, dtype=torch.float64)
    return model, x, model(x).argmax(1)


def corners(x: Tensor, eps: float) -> Tensor:
    """All purified images of the ball around one sample."""
    low, high = rounded((x - eps).clamp(0, 1)), rounded((x + eps).clamp(0, 1))
    ends = [sorted({a, b}) for a, b in zip(low.flatten().tolist(), high.flatten().tolist(), strict=True)]
    return torch.tensor(list(product(*ends)), dtype=x.dtype).view(-1, *x.shape)


def test_linear_model_is_broken_exactly_where_a_corner_is() -> None:
    model, x, y = problem(8)
    x_adv = BitFlips(eps=0.3)(model, x, y)
    assert (x_adv - x).abs().amax() <= 0.3 + 1e-12
    for sample, label, found in zip(x, y, x_adv, strict=True):
        heights = margin(model(corners(sample, 0.3)), label.expand(len(corners(sample, 0.3))))
        reached = margin(model(found[None]), label[None]).item()
        assert (reached > 0) == (heights.max() > 0)
        if heights.max() <= 0:  # it went on to the highest margin
            assert reached == pytest.approx(heights.max().item())


def test_one_flip_is_the_best_of_all_single_flips() -> None:
    model, x, y = problem(10, hidden=16)
    x_adv = BitFlips(eps=0.3, flips=1)(model, x, y)
    for sample, label, found in zip(x, y, x_adv, strict=True):
        start = rounded(sample)
        near = [c for c in corners(sample, 0.3) if (c != start).sum() <= 1]
        heights = margin(model(torch.stack(near)), label.expand(len(near)))
        assert margin(model(found[None]), label[None]).item() == pytest.approx(heights.max().item())


def test_a_start_never_makes_it_weaker() -> None:
    model, x, y = problem(10, hidden=16)
    alone = BitFlips(eps=0.3)(model, x, y)
    started = BitFlips(eps=0.3, start=PGD(eps=0.3, step_size=0.1, steps=3, start="random"))(model, x, y)
    broken = [margin(model(found), y) > 0 for found in (alone, started)]
    assert (broken[1] | ~broken[0]).all()
    assert (started - x).abs().amax() <= 0.3 + 1e-12


def test_values_far_from_the_threshold_do_not_move() -> None:
    model, x, y = problem(8)
    far = torch.where(x > 0.5, 0.9, 0.1).double()
    assert torch.equal(BitFlips(eps=0.3)(model, far, y), far)


def test_threshold_outside_the_bounds_is_refused() -> None:
    with pytest.raises(InputError, match="threshold"):
        BitFlips(eps=0.3, threshold=1.0)
