"""Auto-PGD: which point it keeps, what its trace contains, and which samples leave early."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from soap.attacks import APGD, cross_entropy, dlr, fooled, margin, targeted_dlr
from soap.auxiliary import JointModel
from soap.errors import InputError

Problem = tuple[nn.Module, Tensor, Tensor]
NewModel = Callable[..., JointModel]
LOSSES = {"ce": cross_entropy, "margin": margin, "dlr": dlr}


def test_an_adversarial_point_is_preferred_to_a_higher_loss() -> None:
    class Cliff(nn.Module):
        """Three nearly equal logits; above 0.55 the prediction is wrong although the loss of class 0 is lower."""

        def forward(self, x: Tensor) -> Tensor:
            undecided, wrong = x.new_tensor([0.01, 0.0, 0.0]), x.new_tensor([0.0, 0.02, -10.0])
            return torch.where(x[:, :1] > 0.55, wrong, undecided)

        def logits_and_gradient(self, x: Tensor, criterion: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            return self(x), torch.ones_like(x)

    model, x, y = Cliff(), torch.tensor([[0.5], [0.4]]), torch.tensor([0, 0])
    trace = APGD(eps=0.1, steps=5, start="zero").trace(model, x, y)
    assert trace.loss_curve[0, 0] > trace.loss_curve[1, 0] + 0.3
    assert torch.allclose(trace.x[0], torch.tensor(0.6))
    assert torch.equal(trace.x[1], x[1])  # at most 0.5: no success, and no loss higher than at the start
    assert trace.fooled_at.tolist() == [1, -1]


def test_trace_agrees_with_the_model(problem: Problem, recording: Any) -> None:
    model, x, y = problem
    attack = APGD(eps=0.02, steps=30, loss="margin")
    recorded = recording(model)
    trace = attack.trace(recorded, x, y)
    assert torch.equal(trace.x, attack(model, x, y))
    assert trace.loss_curve.shape == (31, 16)
    for step, point in enumerate(recorded.asked[2:]):
        assert torch.allclose(trace.loss_curve[step], margin(model(point), y), atol=1e-12)
    assert torch.equal(trace.last, recorded.asked[-1])
    assert torch.equal(trace.fooled_at >= 0, fooled(model, trace.x, y))
    assert (trace.fooled_at[14:] == 0).all()
    stepped = trace.fooled_at > 0
    assert 2 <= stepped.sum() < 14
    for row in stepped.nonzero()[:, 0]:
        at = trace.fooled_at[row]
        assert (trace.loss_curve[:at, row] <= 0).all()
        assert trace.loss_curve[at, row] > 0
    clean = margin(model(x), y)
    assert torch.allclose(margin(model(trace.x), y), torch.maximum(trace.loss_curve.amax(0), clean), atol=1e-12)


def test_trace_shows_the_run_of_the_first_success(problem: Problem) -> None:
    model, x, y = problem
    attack = APGD(eps=0.16, norm="l2", steps=1, loss="margin")
    once, often = attack.trace(model, x, y), replace(attack, restarts=8).trace(model, x, y)
    late = (once.fooled_at < 0) & (often.fooled_at >= 0)
    early = once.fooled_at >= 0
    assert late.any()
    assert torch.equal(often.loss_curve[:, early], once.loss_curve[:, early])
    assert (often.loss_curve[:, late].amax(0) > 0).all()
    assert (once.loss_curve[:, late].amax(0) <= 0).all()


@pytest.mark.parametrize("loss", [*LOSSES, "targeted-dlr", "targeted-margin"])
def test_leave_when_fooled_finds_the_same_successes_with_fewer_passes(
    problem: Problem, recording: Any, loss: str
) -> None:
    model, x, y = problem
    attack = APGD(eps=0.012, steps=20, loss=loss)
    patient, hasty = recording(model), recording(model)
    stayed = attack.trace(patient, x, y)
    left = replace(attack, leave_when_fooled=True).trace(hasty, x, y)
    assert torch.equal(left.fooled_at >= 0, stayed.fooled_at >= 0)
    assert torch.equal(left.fooled_at >= 0, fooled(model, left.x, y))
    assert torch.equal(left.x[14:], x[14:])
    stands = left.fooled_at < 0
    assert 0 < stands.sum() < 14
    assert torch.allclose(left.x[stands], stayed.x[stands], atol=1e-9)
    assert torch.allclose(left.loss_curve[:, stands], stayed.loss_curve[:, stands], atol=1e-9)
    walked = left.loss_curve.isnan().logical_not()
    assert walked[:, stands].all()
    assert not walked[:, 14:].any()
    gone = ~stands
    gone[14:] = False
    assert (walked[:, gone].sum(0) > left.fooled_at[gone]).all()
    assert (walked[:, gone].sum(0) < 21).any()
    assert sum(hasty.sizes) < sum(patient.sizes)
    assert max(hasty.sizes[2:]) == 14


def test_a_success_that_depends_on_the_batch_is_not_final() -> None:
    class Fickle(nn.Module):
        """Wrong above 0.55 in a batch of three, above 0.58 in a smaller one: an exaggerated rounding effect."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([torch.zeros_like(x[:, :1]), x[:, :1] - (0.55 if len(x) == 3 else 0.58)], 1)

    model, x, y = Fickle(), torch.tensor([[0.5], [0.465], [0.1]]), torch.tensor([0, 0, 0])
    attack = APGD(eps=0.1, steps=20, loss="margin", start="zero", leave_when_fooled=True)
    trace = attack.trace(model, x, y)
    assert trace.fooled_at[0] >= 0  # 0.6 is wrong in any batch
    assert trace.fooled_at[1] == -1  # 0.565 is wrong only in the whole batch
    assert not fooled(model, trace.x[1:2], y[1:2]).any()
    assert replace(attack, leave_when_fooled=False).trace(model, x, y).fooled_at[1] >= 0


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    eps=st.floats(0, 0.2),
    steps=st.integers(1, 8),
    norm=st.sampled_from(["linf", "l2"]),
    loss=st.sampled_from([*LOSSES, "targeted-dlr", "targeted-margin"]),
    start=st.sampled_from(["zero", "random"]),
    restarts=st.integers(1, 2),
    leave=st.booleans(),
)
def test_results_are_valid_and_never_worse_than_the_input(
    new_model: NewModel, seed: int, eps: float, steps: int, norm: str, loss: str, start: str, restarts: int, leave: bool
) -> None:
    model = new_model(seed % 100).double().eval()
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, 1, 6, 6, dtype=torch.float64, generator=generator)
    y = torch.randint(4, (5,), generator=generator)
    once = APGD(eps=eps, steps=steps, norm=norm, loss=loss, start=start, leave_when_fooled=leave, seed=seed)
    trace = replace(once, restarts=restarts).trace(model, x, y)
    for point in (trace.x, trace.last):
        assert ((point >= 0) & (point <= 1)).all()
        delta = (point - x).flatten(1)
        assert ((delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)) <= eps + 1e-9).all()
    wrong = fooled(model, trace.x, y)
    assert torch.equal(wrong, trace.fooled_at >= 0)
    for other in (x, trace.last, once(model, x, y)):  # the clean image, the last point, fewer restarts
        assert (wrong | ~fooled(model, other, y)).all()
    if loss in LOSSES:
        height = LOSSES[loss]
        stands = ~wrong
        for other in (x, trace.last):
            assert (height(model(trace.x), y) >= height(model(other), y) - 1e-9)[stands].all()
        assert torch.allclose(height(model(trace.last), y)[stands], trace.loss_curve[-1][stands], atol=1e-9)


def test_best_point_beats_last_point_if_steps_overshoot(problem: Problem) -> None:
    model, x, y = problem
    trace = APGD(eps=0.3, steps=4).trace(model, x, y)
    best, last = (cross_entropy(model(point), y) for point in (trace.x, trace.last))
    assert (best >= last - 1e-12).all()
    assert (best > last + 1e-3).any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_nan_and_infinite_gradients_do_not_move_points_out_of_bounds(problem: Problem, bad: float, norm: str) -> None:
    model, x, y = problem

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = model(x)
            return logits

        def logits_and_gradient(self, x: Tensor, criterion: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            gradient = torch.zeros_like(x)
            gradient[..., 0, 0], gradient[..., 1, 1] = bad, 1.0
            return model(x), gradient

    attack = APGD(eps=0.1, steps=8, norm=norm, start="zero")
    trace = attack.trace(Broken(), x, y)
    for point in (trace.x, trace.last):
        assert torch.isfinite(point).all()
        assert torch.equal(point[..., 0, 0], x[..., 0, 0])


def test_a_constant_model_does_not_move_the_points() -> None:
    def flat(x: Tensor) -> Tensor:
        return torch.stack([2 + 0 * x.sum(1), 0 * x.sum(1)], 1)

    x, y = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1])
    trace = APGD(eps=0.1, steps=30, norm="l2", start="zero").trace(flat, x, y)
    assert torch.equal(trace.x, x)
    assert trace.fooled_at.tolist() == [-1, -1, 0]


@pytest.mark.usefixtures("unchecked_shapes")
def test_trace_checks_inputs_like_the_attack(problem: Problem) -> None:
    model, x, y = problem
    with pytest.raises(InputError, match="divide by 255"):
        APGD(eps=0.1).trace(model, 255 * x, y)
    with pytest.raises(InputError, match="at most 3"):
        APGD(eps=0.1).trace(model, x, y + 2)
    training = model.training
    APGD(eps=0.1, steps=1).trace(model.train(), x, y)
    assert all(module.training for module in model.modules())
    model.train(training)


def test_targeted_dlr_increases(problem: Problem) -> None:
    model, x, y = problem
    target = model(x).scatter(1, y[:, None], -torch.inf).argmax(1)
    trace = APGD(eps=0.02, steps=10, loss="targeted-dlr", targets=1, start="zero").trace(model, x, y)
    assert torch.allclose(trace.loss_curve[0], targeted_dlr(model(x), y, target))
    assert torch.allclose(trace.loss_curve[-1], targeted_dlr(model(trace.last), y, target))
    assert (trace.loss_curve.amax(0) > trace.loss_curve[0]).all()
