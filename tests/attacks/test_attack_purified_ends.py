"""PurifiedEnds: the optimum behind purifiers that change each value by itself; which ones do is found by trying."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

import soap
from soap.attacks import PurifiedEnds, margin
from soap.auxiliary.binarity import rounded
from soap.errors import InputError
from soap.evaluation.plan import plan_attempts
from soap.evaluation.protocols import Threat
from soap.gradient_rules.probe import changes_by_value
from soap.purifiers import BitDepth, MedianFilter

EPS = 0.15


def defence(values: int, *, hidden: int = 0, purifier=rounded) -> soap.Defence:
    torch.manual_seed(0)
    layers = [nn.Linear(values, hidden), nn.Tanh(), nn.Linear(hidden, 4)] if hidden else [nn.Linear(values, 2)]
    return soap.Defence(nn.Sequential(nn.Flatten(), *layers).double(), purifier)


def corners(x: Tensor, purifier) -> Tensor:
    """All images that the purifier makes of the ball's corners around one sample."""
    low, high = purifier((x - EPS).clamp(0, 1)[None])[0], purifier((x + EPS).clamp(0, 1)[None])[0]
    ends = [sorted({a, b}) for a, b in zip(low.flatten().tolist(), high.flatten().tolist(), strict=True)]
    return torch.tensor(list(product(*ends)), dtype=x.dtype).view(-1, *x.shape)


@pytest.mark.parametrize("purifier", [rounded, lambda x: (3 * x).round() / 3], ids=["two levels", "four levels"])
@pytest.mark.parametrize("hidden", [0, 24])
def test_every_sample_is_broken_that_a_corner_breaks(purifier, hidden):
    model = defence(9, hidden=hidden, purifier=purifier)
    x = torch.rand(40, 1, 1, 9, dtype=torch.float64)
    y = model(x).argmax(1)
    x_adv = PurifiedEnds(eps=EPS, restarts=3)(model, x, y)
    assert (x_adv - x).abs().amax() <= EPS + 1e-12
    reached, best = margin(model(x_adv), y), []
    for sample, label in zip(x, y, strict=True):
        every = corners(sample, purifier)
        best.append(margin(model.classifier(every), label.expand(len(every))).amax())
    best = torch.stack(best)
    assert 5 <= (best > 0).sum() <= 35
    assert ((reached > 0) >= (best > 0)).all()
    if not hidden:
        assert torch.allclose(reached[best <= 0], best[best <= 0])


def test_a_class_is_reached_where_a_corner_reaches_it():
    model = defence(9, hidden=24)
    x = torch.rand(40, 1, 1, 9, dtype=torch.float64)
    target = model(x).topk(2).indices[:, 1]
    x_adv = PurifiedEnds(eps=EPS, restarts=3, targeted=True)(model, x, target)
    assert (x_adv - x).abs().amax() <= EPS + 1e-12
    every = [corners(sample, rounded) for sample in x]
    best = torch.stack(
        [(model.classifier(some).argmax(1) == goal).any() for some, goal in zip(every, target, strict=True)]
    )
    assert 5 <= best.sum() <= 35
    assert torch.equal(model(x_adv).argmax(1) == target, best)


def test_result_does_not_depend_on_the_batch():
    model = defence(9, hidden=24)
    x = torch.rand(10, 1, 1, 9, dtype=torch.float64)
    y = model(x).argmax(1)
    attack = PurifiedEnds(eps=EPS, restarts=2, seed=3)
    together = attack(model, x, y)
    alone = [attack(model, one[None], label[None]) for one, label in zip(x, y, strict=True)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("model", [defence(4).classifier, soap.Defence(defence(4).classifier)])
def test_a_model_without_a_purifier_is_refused(model):
    with pytest.raises(InputError, match=r"expected a soap\.Defence with a purifier"):
        PurifiedEnds(eps=EPS)(model, torch.rand(2, 1, 1, 4, dtype=torch.float64), torch.tensor([0, 1]))


def reversing(x: Tensor) -> Tensor:
    return 1 - rounded(x)


def leaking(x: Tensor) -> Tensor:
    """Rounds, but one place depends on another a little."""
    out = rounded(x)
    out[:, 0, 3, 3] = (x[:, 0, 5, 5] > 0.5).to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("purifier", "expected"),
    [(rounded, True), (BitDepth(2), True), (MedianFilter(), False), (reversing, False), (leaking, False),
     (lambda x: x.flip(3).round(), False), (lambda x: x - x.mean(), False)],
)  # fmt: skip
def test_purifiers_that_change_each_value_by_itself_are_found(purifier, expected):
    x = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    assert changes_by_value(purifier, x) == expected


@pytest.mark.parametrize(("name", "expected"), [("mnist-cnn-soap-at", True), ("mnist-fcn-dr", False)])
def test_suites_use_it_where_the_purifier_changes_each_value_by_itself(name, expected):
    model, x = soap.load(name), soap.data.load("mnist-mini").x[:8]
    one = soap.Defence(model, soap.SOAP(model))
    probe = one.probe(x)
    assert probe.by_value == expected
    for suite in ("quick", "full"):
        made = plan_attempts(one, Threat(eps=0.3), suite, probe=probe)
        assert ("ends" in {attempt.protocol for attempt in made}) == expected
    squared = plan_attempts(one, Threat(eps=2.0, norm="l2"), "full", probe=probe)
    assert "ends" not in {attempt.protocol for attempt in squared}
