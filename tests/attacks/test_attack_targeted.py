"""Targeted attacks and other bounds, against closed forms on a linear model."""

import inspect
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn

import soap
from soap.attacks import (
    APGD,
    FGSM,
    PGD,
    Attack,
    AutoAttack,
    AuxiliaryAwarePGD,
    BitFlips,
    CarliniWagner,
    DecayingPGD,
    DeepFool,
    HopSkipJump,
    LagrangianPGD,
    Noise,
    OrthogonalPGD,
    PurifiedEnds,
    RayS,
    SelectivePGD,
    Square,
    StolenCopy,
    Transfer,
    margin,
)
from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.errors import InputError

Problem = tuple[nn.Linear, Tensor, Tensor]
EPS = 0.05
QUICK_CW = CarliniWagner(steps=200, search_steps=6, lr=0.005, initial_c=0.01, targeted=True)


def with_target(problem: Problem) -> Problem:
    """The problem with a class to reach in place of the predicted one."""
    model, x, y = problem
    return model, x, (y + 1) % model.out_features


def lead(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The target's logit minus the largest other one."""
    return -margin(model(x), target)


def test_targeted_fgsm_steps_against_the_gradient_of_the_targets_cross_entropy(linear_problem: Problem) -> None:
    model, x, target = with_target(linear_problem)
    error = model(x).softmax(1) - nn.functional.one_hot(target, model.out_features)
    expected = x - EPS * (error @ model.weight).sign()
    assert torch.allclose(FGSM(eps=EPS, targeted=True)(model, x, target), expected)


@pytest.mark.parametrize(
    ("attack", "dual"),
    [
        (FGSM(eps=EPS, targeted=True), 1),
        (PGD(eps=EPS, step_size=EPS / 8, steps=16, targeted=True), 1),
        (PGD(eps=EPS, step_size=EPS / 8, steps=16, loss="margin", keep="best", targeted=True), 1),
        (PGD(eps=EPS, step_size=EPS / 8, steps=16, norm="l2", targeted=True), 2),
        (APGD(eps=EPS, steps=20, targeted=True), 1),
        (APGD(eps=EPS, steps=20, loss="margin", start="zero", norm="l2", targeted=True), 2),
    ],
    ids=["fgsm", "pgd", "pgd-margin", "pgd-l2", "apgd", "apgd-l2"],
)
@pytest.mark.parametrize("linear_problem", [2], indirect=True)
def test_targeted_attacks_gain_eps_times_the_dual_norm_on_two_classes(
    linear_problem: Problem, attack: Attack, dual: float
) -> None:
    model, x, target = with_target(linear_problem)
    gained = lead(model, attack(model, x, target), target) - lead(model, x, target)
    assert torch.allclose(gained, EPS * (model.weight[0] - model.weight[1]).norm(dual), atol=1e-6)


@pytest.mark.parametrize(
    "attack",
    [
        PGD(eps=0.3, step_size=0.05, steps=20, restarts=3, loss="margin", targeted=True),
        APGD(eps=0.3, steps=30, leave_when_fooled=True, targeted=True),
        DeepFool(targeted=True),
        QUICK_CW,
    ],
    ids=["pgd", "apgd", "deepfool", "cw"],
)
def test_targeted_attacks_reach_the_target_class(linear_problem: Problem, attack: Attack) -> None:
    model, x, target = with_target(linear_problem)
    assert torch.equal(model(attack(model, x, target)).argmax(1), target)


@pytest.mark.parametrize("linear_problem", [2], indirect=True)
def test_targeted_min_norm_attacks_find_the_nearest_point_of_the_target_class(linear_problem: Problem) -> None:
    model, x, target = with_target(linear_problem)
    distance = -lead(model, x, target) / (model.weight[0] - model.weight[1]).norm()
    deepfool = row_norms(DeepFool(overshoot=0.02, targeted=True)(model, x, target) - x)
    assert torch.allclose(deepfool, 1.02 * (distance + 1e-4))
    found = row_norms(QUICK_CW(model, x, target) - x)
    assert (found >= distance).all()
    assert found.sum() <= 1.02 * distance.sum()


@pytest.mark.parametrize("attack", [DeepFool(targeted=True), QUICK_CW], ids=["deepfool", "cw"])
def test_samples_of_the_target_class_are_returned_unchanged(linear_problem: Problem, attack: Attack) -> None:
    model, x, y = linear_problem
    assert torch.equal(attack(model, x, y), x)


def test_targeted_confidence_is_the_lead_of_the_target(linear_problem: Problem) -> None:
    model, x, target = with_target(linear_problem)
    reached = lead(model, replace(QUICK_CW, confidence=0.5, initial_c=0.1)(model, x, target), target)
    assert (reached > 0.5).all()
    assert reached.mean() < 0.7


def test_targeted_auxiliary_aware_attack_without_weight_is_targeted_pgd(new_model: type[JointModel]) -> None:
    model, settings = new_model().eval(), {"eps": 0.1, "step_size": 0.03, "steps": 4, "targeted": True}
    x, target = torch.rand(4, 1, 6, 6), torch.arange(4)
    plain = PGD(**settings)(model, x, target)
    assert torch.equal(AuxiliaryAwarePGD(**settings, beta=0.0)(model, x, target), plain)


def near_zero(x: Tensor) -> Tensor:
    """A score with a gradient, which does not oppose the target."""
    return 1e-6 * x.flatten(1).square().sum(1)


DETECTOR = {"eps": 0.3, "step_size": 0.05, "steps": 20, "score": near_zero}
TARGETABLE: dict[type[Attack], list[Attack]] = {
    FGSM: [FGSM(eps=0.3)],
    PGD: [PGD(eps=0.3, step_size=0.05, steps=20, loss=loss) for loss in ("ce", "margin", "dlr", margin)]
    + [
        PGD(eps=2.0, step_size=0.3, steps=20, norm="l2"),
        PGD(eps=8.0, step_size=0.5, steps=60, norm="l1", start="random", restarts=4),
    ],
    APGD: [APGD(eps=0.3, steps=20, loss=loss) for loss in ("ce", "margin", "dlr", margin)]
    + [APGD(eps=2.0, steps=20, norm="l2"), APGD(eps=8.0, steps=30, norm="l1")],
    AuxiliaryAwarePGD: [AuxiliaryAwarePGD(eps=0.3, step_size=0.05, steps=20, beta=0.01)],
    CarliniWagner: [CarliniWagner(steps=60, search_steps=3, lr=0.1, initial_c=1.0)],
    DecayingPGD: [DecayingPGD(eps=0.3, steps=20), DecayingPGD(eps=2.0, steps=20, norm="l2", loss="ce")],
    DeepFool: [DeepFool()],
    LagrangianPGD: [LagrangianPGD(**DETECTOR)],
    SelectivePGD: [SelectivePGD(**DETECTOR)],
    OrthogonalPGD: [OrthogonalPGD(**DETECTOR)],
    Square: [Square(eps=0.3, queries=300), Square(eps=2.0, queries=300, norm="l2")],
    HopSkipJump: [HopSkipJump(eps=None, queries=300), HopSkipJump(eps=None, norm="l2", queries=300)],
    RayS: [RayS(eps=None, queries=300)],
    Noise: [Noise(eps=0.5, draws=300)],
}
"""Every attack that takes `targeted`, with settings that can reach the second most probable class."""

NOT_TARGETABLE = {AutoAttack, BitFlips, StolenCopy, Transfer}
"""Transfer attacks its substitute by an attack that may be targeted."""

NEEDS_PURIFIER = {PurifiedEnds}
"""Tested in `test_attack_purified_ends.py`."""


def test_the_table_has_every_attack() -> None:
    public = {each for each in vars(soap.attacks).values() if isinstance(each, type) and issubclass(each, Attack)}
    concrete = {each for each in public if not inspect.isabstract(each)}
    assert concrete == set(TARGETABLE) | NOT_TARGETABLE | NEEDS_PURIFIER
    assert all("targeted" in {field.name for field in fields(each)} for each in TARGETABLE)


@pytest.mark.parametrize(
    "attack", [each for several in TARGETABLE.values() for each in several], ids=lambda each: repr(each)[:60]
)
def test_every_attack_reaches_a_target_class(new_model: type[JointModel], attack: Attack) -> None:
    model = new_model().eval()
    x = 0.2 + 0.6 * torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    predicted, target = model(x).topk(2).indices.unbind(1)
    found = replace(attack, targeted=True)(model, x, target)
    reached = (model(found).argmax(1) == target).float().mean()
    assert reached >= (0.5 if isinstance(attack, FGSM | Noise | RayS) else 0.8)
    # Aimed at the class that is predicted already, an attack leaves no sample misclassified.
    assert (model(replace(attack, targeted=True)(model, x, predicted)).argmax(1) == predicted).all()


def test_repr_shows_targeted_and_bounds_only_if_they_are_set() -> None:
    assert repr(FGSM(eps=0.1)) == "FGSM(eps=0.1)"
    assert repr(FGSM(eps=0.1, targeted=True, bounds=(-1.0, 1.0))) == "FGSM(eps=0.1, bounds=(-1.0, 1.0), targeted=True)"


class OfUnitImages(nn.Module):
    """A model of images in [-1, 1], from a model of images in [0, 1]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x + 1) / 2)
        return logits


WIDE = (-1.0, 1.0)


@pytest.mark.parametrize(
    ("attack", "scaled"),
    [
        (FGSM(eps=0.3), {"eps": 0.6}),
        (PGD(eps=0.3, step_size=0.1, steps=5), {"eps": 0.6, "step_size": 0.2}),
        (PGD(eps=1.0, step_size=0.5, steps=5, norm="l2"), {"eps": 2.0, "step_size": 1.0}),
        (APGD(eps=0.3, steps=10, start="zero"), {"eps": 0.6}),
        (APGD(eps=1.0, steps=10, start="zero", norm="l2", loss="targeted-dlr"), {"eps": 2.0}),
        (DeepFool(radius=0.2, overshoot=0.0), {"radius": 0.4}),
    ],
    ids=["fgsm", "pgd", "pgd-l2", "apgd", "apgd-l2", "deepfool"],
)
def test_an_attack_in_other_bounds_is_the_scaled_attack(problem: Problem, attack: Attack, scaled: dict) -> None:
    model, x, y = problem
    wide = replace(attack, bounds=WIDE, **scaled)(OfUnitImages(model), 2 * x - 1, y)
    assert torch.allclose(wide, 2 * attack(model, x, y) - 1, atol=1e-3)


@pytest.mark.parametrize(
    "attack",
    [
        PGD(eps=1.5, step_size=0.5, steps=2, start="random", bounds=WIDE),
        APGD(eps=1.5, steps=5, bounds=WIDE),
        CarliniWagner(steps=60, search_steps=3, lr=0.1, initial_c=1.0, bounds=WIDE),
        Noise(eps=1.5, bounds=WIDE),
        Square(eps=1.5, queries=10, bounds=WIDE),
    ],
    ids=["pgd", "apgd", "cw", "noise", "square"],
)
def test_results_use_the_whole_range_of_the_bounds_and_no_more(problem: Problem, attack: Attack) -> None:
    model, x, y = OfUnitImages(problem[0]), 2 * problem[1] - 1, problem[2]
    found = attack(model, x, y)
    assert ((found >= -1) & (found <= 1)).all()
    assert (found < 0).any()
    assert (model(found).argmax(1) != y).float().mean() > 0.5
    with pytest.raises(InputError, match=r"span \[-1"):
        replace(attack, bounds=(0.0, 1.0))(model, x.round(), y)
