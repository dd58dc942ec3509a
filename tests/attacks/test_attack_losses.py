"""The losses of attacks, against closed forms on a few logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from soap.attacks import cross_entropy, dlr, margin, targeted_dlr, targeted_margin
from soap.errors import InputError

LOGITS = torch.tensor([[4.0, 1.0, 2.0, -1.0], [0.0, 3.0, 1.0, 2.0]], dtype=torch.float64)


def test_margin_and_cross_entropy() -> None:
    y = torch.tensor([0, 2])
    assert torch.equal(margin(LOGITS, y), torch.tensor([2.0 - 4.0, 3.0 - 1.0], dtype=torch.float64))
    assert torch.allclose(cross_entropy(LOGITS, y), LOGITS.exp().sum(1).log() - LOGITS[[0, 1], y])


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (
            [0, 1],
            [-(4 - 2) / (4 - 1), -(3 - 2) / (3 - 1)],
        ),  # classified correctly: minus the lead over the second class
        ([2, 3], [-(2 - 4) / (4 - 1), -(2 - 3) / (3 - 1)]),  # second: the lead of the first
        ([1, 2], [1.0, 1.0]),  # third: the largest possible value
        ([3, 0], [-(-1 - 4) / (4 - 1), -(0 - 3) / (3 - 1)]),
    ],
)
def test_dlr(y: list[int], expected: list[float]) -> None:
    assert torch.allclose(dlr(LOGITS, torch.tensor(y)), torch.tensor(expected, dtype=torch.float64))


def test_targeted_losses() -> None:
    y, target = torch.tensor([0, 1]), torch.tensor([3, 2])
    assert torch.equal(targeted_margin(LOGITS, y, target), torch.tensor([-5.0, -2.0], dtype=torch.float64))
    scale = torch.tensor([4 - (1 - 1) / 2, 3 - (1 + 0) / 2], dtype=torch.float64)
    expected = torch.tensor([-5.0, -2.0], dtype=torch.float64) / scale
    assert torch.allclose(targeted_dlr(LOGITS, y, target), expected)


@st.composite
def rows(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    classes = draw(st.integers(4, 12))
    y = torch.randint(classes, (5,), generator=generator)
    target = (y + torch.randint(1, classes, (5,), generator=generator)) % classes
    return torch.randn(5, classes, generator=generator, dtype=torch.float64), y, target


@settings(max_examples=30)
@given(rows(), st.floats(0.01, 100), st.floats(-100, 100))
def test_dlr_does_not_change_with_scale_and_shift_of_logits(
    batch: tuple[Tensor, Tensor, Tensor], scale: float, shift: float
) -> None:
    logits, y, target = batch
    assert torch.allclose(dlr(scale * logits + shift, y), dlr(logits, y))
    assert torch.allclose(targeted_dlr(scale * logits + shift, y, target), targeted_dlr(logits, y, target))


@settings(max_examples=30)
@given(rows())
def test_positive_margins_mean_misclassified(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, y, target = batch
    wrong = logits.argmax(1) != y
    assert torch.equal(margin(logits, y) > 0, wrong)
    assert torch.equal(dlr(logits, y) > 0, wrong)
    for loss in (targeted_margin, targeted_dlr):
        assert (wrong | (loss(logits, y, target) <= 0)).all()
    assert torch.allclose(targeted_margin(logits, y, target).sign(), targeted_dlr(logits, y, target).sign())


@pytest.mark.parametrize("height", [0.0, 7.5])
def test_dlr_and_its_gradient_are_finite_for_equal_logits(height: float) -> None:
    y, target = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
    for loss in (lambda z: dlr(z, y), lambda z: targeted_dlr(z, y, target)):
        logits = torch.full((3, 5), height, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(logits).sum(), logits)
        assert torch.isfinite(loss(logits)).all()
        assert torch.isfinite(gradient).all()


def test_dlr_needs_three_and_targeted_dlr_four_classes() -> None:
    y = torch.tensor([0, 1])
    with pytest.raises(InputError, match="2 classes, but the loss 'dlr' compares 3 logits; use 'margin'"):
        dlr(LOGITS[:, :2], y)
    with pytest.raises(InputError, match="3 classes, but the loss 'targeted-dlr' compares 4 logits"):
        targeted_dlr(LOGITS[:, :3], y, 1 - y)
