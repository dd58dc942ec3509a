"""Comparison with the same attacks of foolbox, at equal settings, on the bundled CNN."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import soap
from soap._runtime.isolation import preserved_random_state
from soap.attacks import FGSM, PGD, Attack, CarliniWagner, DeepFool, HopSkipJump, fooled
from soap.balls import row_norms

with warnings.catch_warnings():  # foolbox imports deprecated names of scipy
    warnings.simplefilter("ignore", DeprecationWarning)
    foolbox = pytest.importorskip("foolbox", reason="the second opinion is foolbox's")

Bundled = tuple[soap.JointModel, Tensor, Tensor]


@pytest.fixture(scope="module")
def bundled_cnn() -> Bundled:
    """The bundled CNN and 200 test digits."""
    digits = soap.data.load("mnist-mini").take(200)
    return soap.load("mnist-cnn-dr"), digits.x, digits.y


def both(bundled: Bundled, ours: Attack, theirs: Callable[..., Tensor], n: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Return the labels of the digits, our result, and foolbox's."""
    model, x, y = bundled[0], bundled[1][:n], bundled[2][:n]
    return ours(model, x, y), theirs(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y), y


def assert_as_strong(bundled: Bundled, ours: Tensor, theirs: Tensor, y: Tensor) -> None:
    """Robust accuracies within one point."""
    got, wanted = (100 * (~fooled(bundled[0], x_adv, y)).double().mean() for x_adv in (ours, theirs))
    assert abs(got - wanted) <= 1


@pytest.mark.parametrize("eps", [0.1, 0.2, 0.3])
def test_fgsm(bundled_cnn: Bundled, eps: float) -> None:
    theirs = foolbox.attacks.LinfFastGradientAttack(random_start=False)
    x_adv, reference, y = both(bundled_cnn, FGSM(eps=eps), lambda *args: theirs.run(*args, epsilon=eps))
    assert_as_strong(bundled_cnn, x_adv, reference, y)
    assert torch.allclose(x_adv, reference, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            PGD(eps=0.2, step_size=0.02, steps=15),
            foolbox.attacks.LinfPGD(abs_stepsize=0.02, steps=15, random_start=False),
        ),
        (
            PGD(eps=1.5, step_size=0.2, steps=15, norm="l2"),
            foolbox.attacks.L2PGD(abs_stepsize=0.2, steps=15, random_start=False),
        ),
    ],
    ids=["linf", "l2"],
)
def test_pgd(bundled_cnn: Bundled, ours: PGD, theirs: foolbox.attacks.LinfPGD) -> None:
    x_adv, reference, y = both(bundled_cnn, ours, lambda *args: theirs.run(*args, epsilon=ours.eps))
    assert_as_strong(bundled_cnn, x_adv, reference, y)
    # Where the loss is nearly flat, rounding decides the sign of its gradient, and two runs may differ.
    assert ((x_adv - reference).abs() <= 1e-5).double().mean() >= 0.99


# Fewer steps than in the paper, but enough to break every digit.
@pytest.mark.parametrize(("steps", "lr", "abort_early"), [(60, 0.1, False), (120, 0.05, True)])
def test_carlini_wagner(bundled_cnn: Bundled, steps: int, lr: float, abort_early: bool) -> None:
    ours = CarliniWagner(steps=steps, search_steps=2, lr=lr, initial_c=3.0, abort_early=abort_early)
    theirs = foolbox.attacks.L2CarliniWagnerAttack(
        steps=steps, binary_search_steps=2, stepsize=lr, initial_const=3.0, confidence=0, abort_early=abort_early
    )
    x_adv, reference, y = both(bundled_cnn, ours, theirs.run, 24)
    assert_as_strong(bundled_cnn, x_adv, reference, y)
    assert_as_near(bundled_cnn, x_adv, reference)


def test_early_abort_of_carlini_wagner_costs_no_distance(bundled_cnn: Bundled) -> None:
    """foolbox aborts a batch as a whole, ours each sample; few steps at a large rate are the hardest case."""
    settings = {"steps": 50, "search_steps": 3, "lr": 0.1, "initial_c": 1.0}
    theirs = foolbox.attacks.L2CarliniWagnerAttack(
        steps=50, binary_search_steps=3, stepsize=0.1, initial_const=1.0, confidence=0, abort_early=True
    )
    x_adv, reference, y = both(bundled_cnn, CarliniWagner(**settings), theirs.run, 24)
    model, x, _ = bundled_cnn
    rows = fooled(model, x_adv, y) & fooled(model, reference, y)
    assert rows.sum() >= 21
    ours, others = (row_norms(found - x[: len(found)])[rows].mean() for found in (x_adv, reference))
    assert ours <= 1.01 * others


@pytest.mark.parametrize("candidates", [10, 3])
def test_deepfool(bundled_cnn: Bundled, candidates: int) -> None:
    theirs = foolbox.attacks.L2DeepFoolAttack(steps=50, overshoot=0.02, candidates=candidates, loss="logits")
    x_adv, reference, y = both(bundled_cnn, DeepFool(candidates=candidates), theirs.run, 20)
    assert_as_strong(bundled_cnn, x_adv, reference, y)
    assert_as_near(bundled_cnn, x_adv, reference)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_hop_skip_jump(norm: str, recording: Any) -> None:
    model, digits = soap.load("mnist-cnn-no-def").eval(), soap.data.load("mnist-mini").take(25)
    right = ~fooled(model, digits.x, digits.y)
    x, y = digits.x[right][:24], digits.y[right][:24]
    recorded = recording(model)
    with preserved_random_state(), torch.no_grad():
        torch.manual_seed(0)
        theirs = foolbox.attacks.HopSkipJumpAttack(steps=5, constraint=norm)
        reference = theirs.run(foolbox.PyTorchModel(recorded.eval(), bounds=(0, 1)), x, y)
    queries = sum(recorded.sizes) // len(x)
    assert 900 < queries < 1100
    x_adv = HopSkipJump(eps=None, norm=norm, queries=queries)(model, x, y)
    assert fooled(model, x_adv, y).all()
    order = 2 if norm == "l2" else torch.inf
    got, wanted = ((found - x).flatten(1).norm(order, dim=1).median() for found in (x_adv, reference))
    assert got <= 1.05 * wanted


def assert_as_near(bundled: Bundled, ours: Tensor, theirs: Tensor) -> None:
    """The mean L2 norm is at most 5 % larger, and both attacks break all samples."""
    x = bundled[1][: len(ours)]
    got, wanted = row_norms(ours - x), row_norms(theirs - x)
    assert got.mean() <= 1.05 * wanted.mean()
    assert (got > 0).sum() == (wanted > 0).sum()
