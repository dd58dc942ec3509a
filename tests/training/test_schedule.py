"""Learning-rate schedules and augmentation."""

import dataclasses
import math

import pytest
import torch
from tiny import noise_images, tiny_model

import soap
from soap._runtime import distributed
from soap._runtime.distributed import Processes
from soap.training import Schedule
from soap.training.joint_step import JointStep

SCHEDULE = Schedule(epochs=3, lr=0.05, batch_size=8)


def test_rate_warms_up_and_drops_at_milestones():
    schedule = Schedule(epochs=200, lr=0.1, milestones=(0.5, 0.75), warmup_epochs=2)
    rates = {0.0: 0.0, 1.0: 0.05, 2.0: 0.1, 99.9: 0.1, 100.0: 0.01, 149.9: 0.01, 150.0: 0.001, 199.9: 0.001}
    for epoch, rate in rates.items():
        assert schedule.rate(epoch) == pytest.approx(rate)


def test_rate_does_not_drop_in_the_first_epoch():
    """A training of one epoch once had a tenth of its rate from the start."""
    assert Schedule(epochs=1, lr=0.1).rate(0.5) == pytest.approx(0.1)
    assert Schedule(epochs=2, lr=0.1, milestones=(0.2,)).rate(0.9) == pytest.approx(0.1)
    assert Schedule(epochs=2, lr=0.1, milestones=(0.2,)).rate(1.0) == pytest.approx(0.01)


def test_cosine_rate_falls_along_a_half_cosine():
    schedule = Schedule(epochs=10, lr=0.4, decay="cosine", warmup_epochs=2, milestones=(0.5,))
    for epoch, rate in {0: 0.0, 1: 0.2 * (1 + math.cos(0.1 * math.pi)) / 2, 5: 0.2, 10: 0.0}.items():
        assert schedule.rate(epoch) == pytest.approx(rate)
    rates = [schedule.rate(2 + step / 10) for step in range(81)]
    assert rates == sorted(rates, reverse=True)
    with pytest.raises(soap.InputError, match="decay"):
        Schedule(epochs=1, lr=0.1, decay="linear")


def test_each_of_two_processes_gets_its_part_of_the_batch_that_one_process_augments(monkeypatch):
    seen = []

    class Watch:
        def perturb(self, model, x, y):
            seen.append(x)
            return x

    schedule = Schedule(epochs=1, lr=0.01, batch_size=8, augment=("affine", "shift"))
    x, y = noise_images(8, seed=1), torch.arange(8) % 4
    monkeypatch.setattr(Processes, "average", lambda self, tensors: None)
    for group in (Processes(), Processes(rank=0, world_size=2), Processes(rank=1, world_size=2)):
        monkeypatch.setattr(distributed, "processes", lambda group=group: group)
        JointStep(tiny_model().train(), x, y, schedule, attack=Watch())(torch.arange(8), seed=5, rate=0.01)
    whole, first, second = seen
    assert torch.equal(whole, torch.cat([first, second]))
    assert not torch.equal(whole, x)


BAD = [
    ({"epochs": 0}, "epochs is 0"),
    ({"lr": 0.0}, "lr is 0.0"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"augment": ("flop",)}, "augment is 'flop'"),
    ({"milestones": (50.0,)}, "milestone is 50.0"),
    ({"momentum": -1.0}, "momentum is -1.0"),
    ({"warmup_epochs": float("nan")}, "warmup_epochs is nan"),
    ({"holdout": -1}, "holdout is -1"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_schedule_raises(change, message):
    with pytest.raises(soap.InputError, match=message):
        dataclasses.replace(SCHEDULE, **change)
