"""A second opinion: APGD and Square of AutoAttack's own package, at equal settings, on a bundled network."""

from typing import Any

import pytest
import torch
from torch import Tensor

import soap
from soap._runtime.isolation import isolated
from soap.attacks import APGD, Square, fooled

base = pytest.importorskip("pyautoattack.autopgd_base")
square = pytest.importorskip("pyautoattack.square")

Bundled = tuple[soap.JointModel, Tensor, Tensor]
NORMS = {"linf": "Linf", "l2": "L2"}


@pytest.fixture(scope="module")
def bundled() -> Bundled:
    """The bundled fully connected network, undefended, and 1,000 test digits."""
    digits = soap.data.load("mnist-mini").take(1000)
    return soap.load("mnist-fcn-no-def").eval(), digits.x, digits.y


def robust_accuracies(bundled: Bundled, ours: APGD | Square, theirs: object) -> tuple[float, float]:
    """Accuracy in per cent after our attack and after theirs, which seeds the global random state."""
    model, x, y = bundled
    with isolated(model):
        points = theirs.perturb(x, y)
    return tuple(100 * float((~fooled(model, x_adv, y)).double().mean()) for x_adv in (ours(model, x, y), points))


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.06), ("l2", 0.8)])
@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_apgd_breaks_the_same_digits_as_autoattack_from_the_same_starts(
    bundled: Bundled, recording: Any, monkeypatch: pytest.MonkeyPatch, norm: str, eps: float, loss: str
) -> None:
    monkeypatch.setattr("soap.attacks.attack.CPU_ROWS", 1000)  # one part, whose starts are those of all digits
    model, x, y = bundled
    right = ~fooled(model, x, y)  # theirs skips digits that are misclassified from the start
    x, y = x[right][:400], y[right][:400]
    recorded = recording(model)
    trace = APGD(eps=eps, norm=norm, steps=50, loss=loss).trace(recorded, x, y)
    starts = recorded.asked[2]  # after the input check and the clean digits
    theirs = base.APGDAttack(model, norm=NORMS[norm], eps=eps, n_iter=50, loss=loss, device="cpu")
    theirs.init_hyperparam(x)
    with isolated(model):
        _, stands, height, _ = theirs.attack_single_run(x, y, x_init=starts)
    # Their first checkpoint counts one rise more or less, which changes some runs slightly.
    assert 200 < stands.sum() < 350
    assert ((trace.fooled_at < 0) != stands).sum() <= 2
    assert torch.isclose(trace.loss_curve.amax(0), height, atol=0.02).double().mean() > 0.98


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.06), ("l2", 0.8)])
def test_apgd_is_as_strong_as_autoattack_from_its_own_starts(bundled: Bundled, norm: str, eps: float) -> None:
    theirs = base.APGDAttack(bundled[0], norm=NORMS[norm], eps=eps, n_iter=30, seed=1, device="cpu")
    got, wanted = robust_accuracies(bundled, APGD(eps=eps, norm=norm, steps=30, seed=1), theirs)
    assert 60 < wanted < 80
    assert abs(got - wanted) <= 0.5


@pytest.mark.parametrize("loss", ["ce", "dlr"])
@pytest.mark.filterwarnings("ignore:there are .* points with zero gradient")
def test_l1_apgd_is_as_strong_as_autoattack(bundled: Bundled, loss: str) -> None:
    model, x, y = bundled
    theirs = base.APGDAttack(model, norm="L1", eps=6.0, n_iter=30, loss=loss, seed=1, device="cpu")
    ours = APGD(eps=6.0, norm="l1", steps=30, loss=loss, seed=1)
    got, wanted = robust_accuracies((model, x[:300], y[:300]), ours, theirs)
    assert 50 < wanted < 75
    assert got <= wanted + 1


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.06), ("l2", 0.8)])
def test_targeted_apgd(bundled: Bundled, norm: str, eps: float) -> None:
    model, x, y = bundled
    theirs = base.APGDAttack_targeted(
        model, norm=NORMS[norm], eps=eps, n_iter=20, n_target_classes=3, seed=1, device="cpu"
    )
    ours = APGD(eps=eps, norm=norm, steps=20, loss="targeted-dlr", targets=3, seed=1)
    got, wanted = robust_accuracies((model, x[:600], y[:600]), ours, theirs)
    assert 60 < wanted < 80
    assert abs(got - wanted) <= 0.5


@pytest.mark.parametrize(("norm", "eps", "queries"), [("linf", 0.06, 200), ("l2", 1.2, 300)])
def test_square(bundled: Bundled, norm: str, eps: float, queries: int) -> None:
    # Theirs uses the same squares for all images, so its accuracy varies by a point between seeds: average two.
    model, x, y = bundled
    pairs = [
        robust_accuracies(
            (model, x[:500], y[:500]),
            Square(eps=eps, norm=norm, queries=queries, seed=seed),
            square.SquareAttack(model, norm=NORMS[norm], eps=eps, n_queries=queries, seed=seed, device="cpu"),
        )
        for seed in (0, 1)
    ]
    got, wanted = torch.tensor(pairs).mean(0).tolist()
    assert 80 < wanted < 95
    assert abs(got - wanted) <= 1
