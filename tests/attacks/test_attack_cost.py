"""Longer attacks: number of device synchronisations, and independence of the memory layout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from soap.attacks import APGD, Attack, CarliniWagner, DeepFool, Square, carlini_wagner
from soap.attacks.apgd_state import checkpoints
from soap.auxiliary import JointModel

Problem = tuple[nn.Module, Tensor, Tensor]

QUICK = {"steps": 30, "search_steps": 2, "lr": 0.1, "initial_c": 1.0}


@pytest.fixture
def problem(new_model: Callable[..., JointModel]) -> Problem:
    """A model in double precision and samples that it classifies correctly."""
    model = new_model().double().eval()
    x = torch.rand(12, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return model, x, model(x).argmax(1)


class Waits(TorchDispatchMode):
    """Count the operations that make the host wait for the device: values read back, samples selected by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        masks = packet in (torch.ops.aten.index, torch.ops.aten.index_put_) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if masks or packet in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.count += 1
        return func(*args, **(kwargs or {}))


def waits(search: Callable[[], Tensor]) -> int:
    with torch.no_grad(), Waits() as counted:
        search()
    return counted.count


def test_wait_counter_counts_device_synchronisation() -> None:
    x = torch.rand(4)
    assert waits(lambda: x[x > 0.5]) == 1
    assert waits(lambda: (x > 0.5).nonzero()) == 1
    assert waits(lambda: x * x.sum().item()) == 1
    assert waits(lambda: torch.where(x > 0.5, x, -x)) == 0


def test_carlini_wagner_synchronises_only_at_progress_checks(problem: Problem) -> None:
    assert waits(lambda: CarliniWagner(**QUICK, abort_early=False).search(*problem)) == 0
    assert (
        0
        < waits(lambda: CarliniWagner(**QUICK).search(*problem))
        <= QUICK["search_steps"] * carlini_wagner.PROGRESS_CHECKS
    )


def test_deepfool_synchronises_once_per_step(problem: Problem, recording: Any) -> None:
    model, x, y = problem
    recorded = recording(model)
    counted = waits(lambda: DeepFool().search(recorded, x, y))
    steps = (len(recorded.sizes) - 1) // 2  # one call for the most probable classes, then two per step
    assert steps > 1
    assert counted == steps


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_apgd_synchronises_once_per_run_and_where_samples_may_leave(problem: Problem, norm: str) -> None:
    settings = {"eps": 1e-3, "steps": 12, "norm": norm, "loss": "targeted-dlr"}  # no success, so all runs are made
    assert waits(lambda: APGD(**settings, restarts=2).perturb(*problem)) == 2 * 3
    within_a_run = 3 * len({*checkpoints(12), 12})  # confirmed, active and leaving samples
    assert waits(lambda: APGD(**settings, targets=1, leave_when_fooled=True).perturb(*problem)) == 1 + within_a_run


def test_square_synchronises_once_per_query(problem: Problem) -> None:
    assert waits(lambda: Square(eps=1e-3, queries=20).perturb(*problem)) <= 20 + 2


class Turned(nn.Module):
    """The same model, whose gradient has the strides of a transposed image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x.mT.contiguous().mT)
        return logits


@pytest.mark.parametrize(
    "attack",
    [
        CarliniWagner(**QUICK),
        DeepFool(steps=8),
        APGD(eps=0.05, steps=20),
        APGD(eps=0.3, steps=20, norm="l2"),
        Square(eps=0.05, queries=20),
    ],
    ids=["cw", "deepfool", "apgd-linf", "apgd-l2", "square"],
)
def test_memory_layout_does_not_change_results(problem: Problem, attack: Attack) -> None:
    model, x, y = problem
    turned = x.mT.contiguous().mT
    assert torch.equal(turned, x)
    assert not turned.is_contiguous()
    wanted = attack(model, x, y)
    assert torch.allclose(attack(model, turned, y), wanted, atol=1e-9)
    assert torch.allclose(attack(Turned(model), x, y), wanted, atol=1e-9)
