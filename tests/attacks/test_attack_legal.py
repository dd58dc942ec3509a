"""Every attack: results are valid inputs inside the ball, and model, inputs and random state do not change."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from soap.attacks import Attack, AuxiliaryAwarePGD
from soap.auxiliary import JointModel
from soap.balls import L1, L2, Ball

NewModel = Callable[..., JointModel]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """One to five images, grey or black and white, with any labels."""
    n, seed = draw(st.integers(1, 5)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, 6, 6, generator=generator)
    if draw(st.booleans()):
        x = x.round()  # corners of the box, where tanh has no inverse and every step is clipped
    return x, torch.randint(4, (n,), generator=generator)


def size(delta: Tensor, ball: Ball) -> Tensor:
    order = 1 if isinstance(ball, L1) else 2 if isinstance(ball, L2) else torch.inf
    return torch.linalg.vector_norm(delta.flatten(1), ord=order, dim=1)


@settings(max_examples=8)
@given(batch=batches(), seed=st.integers(0, 100))
def test_results_are_inside_bounds_and_ball(
    case: object, attack: Attack, new_model: NewModel, batch: object, seed: int
) -> None:
    x, y = batch
    x_adv = attack(new_model(seed), x, y)
    assert x_adv.shape == x.shape
    assert x_adv.dtype == x.dtype
    assert torch.isfinite(x_adv).all()
    assert ((x_adv >= 0) & (x_adv <= 1)).all()
    if case.ball is not None:
        assert (size(x_adv - x, case.ball) <= case.ball.eps + 1e-6).all()
    assert not x_adv.requires_grad


@settings(max_examples=5)
@given(batch=batches(), training=st.booleans(), learning=st.booleans(), with_gradients=st.booleans())
def test_model_inputs_and_random_state_do_not_change(
    attack: Attack, new_model: NewModel, batch: object, training: bool, learning: bool, with_gradients: bool
) -> None:
    x, y = batch
    model = new_model().train(training)
    model.encoder[1].eval()  # modes may be mixed
    next(model.parameters()).requires_grad_(learning)
    if with_gradients:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)

    def state() -> dict[str, object]:
        # Python's `random` is left out: the run-time shape checks of the tests draw from it.
        tensors = {"x": x, "y": y, "torch's random state": torch.get_rng_state(), **model.state_dict()}
        return {
            **{name: tensor.clone() for name, tensor in tensors.items()},
            **{f"{name}.grad": None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
            "modes": [m.training for m in model.modules()],
            "learning": [p.requires_grad for p in model.parameters()],
            "numpy's random state": repr(np.random.get_state()),
            "autograd": torch.is_grad_enabled(),
            "settings": repr(attack),
        }

    before = state()
    attack(model, x, y)
    after = state()
    assert before.keys() == after.keys()
    for name, was in before.items():
        assert torch.equal(was, after[name]) if isinstance(was, Tensor) else was == after[name], name


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_do_not_depend_on_grad_mode(attack: Attack, new_model: NewModel, mode: Callable[[], object]) -> None:
    x, y = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    plain = attack(new_model().train(), x, y)
    model = new_model().eval()
    with mode():
        there = attack(model, x.clone().requires_grad_(not torch.is_inference_mode_enabled()), y.int())
    assert torch.equal(plain, there)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float64])
def test_logits_may_have_another_precision(
    attack: Attack, case: object, new_model: NewModel, precision: torch.dtype
) -> None:
    if isinstance(attack, AuxiliaryAwarePGD):
        pytest.skip("it needs a joint model, whose logits cannot be wrapped")
    model = new_model().eval()
    x, y = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    x_adv = attack(lambda images: model(images).to(precision), x, y)
    assert x_adv.dtype == x.dtype
    assert case.ball is None or (size(x_adv - x, case.ball) <= case.ball.eps + 1e-6).all()


def test_two_equal_calls_give_the_same_result(attack: Attack, new_model: NewModel) -> None:
    x, y = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    assert torch.equal(attack(new_model(), x, y), attack(new_model(), x, y))


def test_attacks_are_frozen_and_show_their_settings(attack: Attack) -> None:
    assert repr(attack).startswith(type(attack).__name__ + "(")
    for name, value in vars(attack).items():
        with pytest.raises(AttributeError):
            setattr(attack, name, value)
        hidden = name == "substitute" or (name in ("bounds", "targeted") and value == getattr(Attack, name))
        assert hidden or f"{name}={value!r}" in repr(attack)
