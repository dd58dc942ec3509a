"""A loss of the user's own in PGD and APGD: same results as the built-in one, and a stable name in repr and results."""

import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import APGD, PGD, Attack, cross_entropy, margin
from soap.errors import InputError
from soap.specs import call_text, spec_of

Problem = tuple[nn.Module, Tensor, Tensor]


def label_probability(logits: Tensor, y: Tensor) -> Tensor:
    """Minus the probability of the label."""
    return -logits.softmax(1).gather(1, y[:, None])[:, 0]


def shifted(logits: Tensor, y: Tensor, by: float = 0.0) -> Tensor:
    return cross_entropy(logits, y) + by


class Squared:
    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return margin(logits, y) ** 3


def attacks(**more: Any) -> list[Attack]:
    return [
        PGD(eps=0.1, step_size=0.03, steps=5, keep="best", **more),
        APGD(eps=0.1, steps=8, **more),
        APGD(eps=0.5, steps=8, norm="l2", leave_when_fooled=True, restarts=2, **more),
        APGD(eps=2.0, steps=8, norm="l1", **more),
    ]


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(("named", "own"), [("ce", cross_entropy), ("margin", lambda logits, y: margin(logits, y))])
def test_a_function_gives_the_results_of_the_same_built_in_loss(
    problem: Problem, named: str, own: Any, targeted: bool
) -> None:
    model, x, y = problem
    pairs = zip(attacks(loss=named, targeted=targeted), attacks(loss=own, targeted=targeted), strict=True)
    for built_in, with_function in pairs:
        assert torch.equal(built_in(model, x, y), with_function(model, x, y))


def test_an_own_loss_is_increased(problem: Problem) -> None:
    model, x, y = problem
    for attack in attacks(loss=label_probability):
        found = attack(model, x, y)
        assert (label_probability(model(found), y) >= label_probability(model(x), y)).all()
        assert (model(found).argmax(1) != y).sum() > (model(x).argmax(1) != y).sum()


@pytest.mark.parametrize(
    ("loss", "name"),
    [(label_probability, "label_probability"), (partial(shifted, by=1.0), "shifted")],
    ids=["function", "partial"],
)
def test_a_function_is_shown_and_stored_by_its_name(loss: Any, name: str) -> None:
    for attack in attacks(loss=loss):
        spec = spec_of(attack)
        assert spec.settings["loss"] == name
        assert json.loads(json.dumps(spec.settings)) == spec.settings
        assert f"loss='{name}'" in repr(attack)
        assert repr(attack) == call_text(spec)
        assert " at 0x" not in repr(attack)


def test_a_callable_object_is_a_loss(problem: Problem) -> None:
    model, x, y = problem
    found = APGD(eps=0.1, steps=8, loss=Squared())(model, x, y)
    assert (margin(model(found), y) >= margin(model(x), y)).all()
    assert "Squared" in repr(APGD(eps=0.1, loss=Squared()))
    assert " at 0x" not in repr(APGD(eps=0.1, loss=Squared()))
    assert spec_of(APGD(eps=0.1, loss=Squared())).settings["loss"] == "Squared"


@pytest.mark.parametrize("wrong", [lambda logits, y: cross_entropy(logits, y).mean(), lambda logits, y: logits])
def test_a_loss_without_one_value_per_sample_raises(problem: Problem, wrong: Any) -> None:
    model, x, y = problem
    for attack in attacks(loss=wrong):
        with pytest.raises(InputError, match="one loss per sample"):
            attack(model, x, y)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("make", [PGD, APGD])
def test_a_loss_that_is_neither_a_name_nor_a_function_raises(make: Any) -> None:
    settings = {"eps": 0.1, "steps": 1} | ({"step_size": 0.1} if make is PGD else {})
    with pytest.raises(InputError, match="loss is 3"):
        make(**settings, loss=3)
