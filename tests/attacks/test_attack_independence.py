"""Samples do not depend on each other, and a finished sample costs no further passes."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import PGD, Attack, CarliniWagner, DeepFool, Transfer, fooled
from soap.auxiliary import JointModel

NewModel = Callable[..., JointModel]


@pytest.fixture
def digits(new_model: NewModel) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in double precision and samples that it classifies correctly."""
    model = new_model().double().eval()
    x = torch.rand(12, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return model, x, model(x).argmax(1)


def test_a_sample_alone_gives_the_same_result_as_in_a_batch(
    attack: Attack, digits: tuple[nn.Module, Tensor, Tensor]
) -> None:
    if isinstance(attack, PGD) and attack.start == "random":
        pytest.skip("random starts are drawn for the batch as a whole")
    model, x, y = digits
    if isinstance(attack, Transfer):
        attack = replace(attack, substitute=deepcopy(attack.substitute).double())
    together = attack(model, x, y)
    alone = torch.cat([attack(model, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    assert torch.allclose(together, alone, atol=1e-7)


def test_deepfool_removes_samples_after_success(digits: tuple[nn.Module, Tensor, Tensor], recording: Any) -> None:
    model, x, y = digits
    recorded = recording(model)
    x_adv = DeepFool()(recorded, x, y)
    assert fooled(model, x_adv, y).all()
    # One call for the input check, one for the predictions, one for the most probable classes; then two per step.
    assert recorded.sizes[:3] == [8, 12, 12]
    stepped, checked = recorded.sizes[3::2], recorded.sizes[4::2]
    assert stepped == checked
    assert stepped == sorted(stepped, reverse=True)
    assert stepped[0] == 12
    assert 0 < stepped[-1] < 12
    # A sample stays in the batch until its first success.
    for now, after in zip(recorded.asked[4::2], stepped[1:], strict=False):
        survivors = [row for row in now if not any(torch.equal(row, final) for final in x_adv)]
        assert len(survivors) == after


def test_carlini_wagner_removes_samples_without_progress(
    digits: tuple[nn.Module, Tensor, Tensor], recording: Any
) -> None:
    model, x, y = digits
    patient = CarliniWagner(steps=60, search_steps=2, lr=0.1, initial_c=1.0, abort_early=False)
    recorded = recording(model)
    patient(recorded, x, y)
    assert recorded.sizes == [8, 12] + 2 * 60 * [12]

    recorded = recording(model)
    eager = CarliniWagner(steps=60, search_steps=2, lr=0.1, initial_c=1.0)
    eager(recorded, x, y)
    sizes = recorded.sizes[2:]
    second = sizes.index(12, next(i for i, size in enumerate(sizes) if size < 12))  # all samples return for the next c
    for search_step in (sizes[:second], sizes[second:]):
        assert search_step == sorted(search_step, reverse=True)
        assert search_step[0] == 12
        assert len(set(search_step)) > 1
        assert len(search_step) <= 60
    assert sum(sizes) < 2 * 60 * 12


def test_early_abort_does_not_change_the_other_samples(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    attack = CarliniWagner(steps=60, search_steps=3, lr=0.1, initial_c=1.0)
    together = attack(model, x, y)
    for half in (slice(0, 5), slice(5, 12)):
        assert torch.allclose(together[half], attack(model, x[half], y[half]), atol=1e-7)


@pytest.mark.parametrize("attack", [CarliniWagner(), DeepFool()], ids=["cw", "deepfool"])
def test_misclassified_samples_are_skipped(
    attack: Attack, digits: tuple[nn.Module, Tensor, Tensor], recording: Any
) -> None:
    model, x, y = digits
    recorded = recording(model)
    assert torch.equal(attack(recorded, x, (y + 1) % 4), x)
    assert recorded.sizes == [8, 12]  # the input check and the predictions

    mixed = torch.where(torch.arange(12) < 9, (y + 1) % 4, y)
    recorded = recording(model)
    quick = type(attack)(steps=2)
    x_adv = quick(recorded, x, mixed)
    assert torch.equal(x_adv[:9], x[:9])
    assert max(recorded.sizes[2:]) == 3


def test_pgd_restarts_only_samples_without_success(digits: tuple[nn.Module, Tensor, Tensor], recording: Any) -> None:
    model, x, y = digits
    once = PGD(eps=0.03, step_size=0.015, steps=2)
    stood = int((~fooled(model, once(model, x, y), y)).sum())
    assert 0 < stood < len(x)
    recorded = recording(model)
    again = PGD(eps=0.03, step_size=0.015, steps=2, restarts=2)(recorded, x, y)
    assert recorded.sizes == [8, 12, 12, 12, stood, stood]
    kept = fooled(model, once(model, x, y), y)
    assert torch.equal(again[kept], once(model, x, y)[kept])
    assert not torch.equal(again[~kept], once(model, x, y)[~kept])
