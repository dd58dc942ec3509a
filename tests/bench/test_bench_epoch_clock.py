"""The clock of an epoch, on a clock of its own."""

import pytest
import torch

from soap.bench.training_run import EpochClock
from soap.errors import InputError

STEP, CHECKPOINT = 2.0, 50.0


class Time:
    """A clock that stands still until it is told."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


def epochs(clock, time, *, count, steps, told_twice=False):
    """What the clock says at each step of a loop like ours, which saves a checkpoint at the end of an epoch."""
    said = []
    clock.start()
    for step in range(1, count * steps + 1):
        time.now += STEP
        if told_twice:
            clock.reached(step)
        if step % steps == 0:
            time.now += CHECKPOINT
            clock.reached(step)
        said.append(clock.tick())
        if said[-1] is not None:
            time.now += 1000  # another path has its turn
            clock.start()
    return said


@pytest.mark.parametrize("told_twice", [False, True])
def test_whole_epochs_are_not_scaled(monkeypatch, told_twice):
    clock = EpochClock(torch.device("cpu"), measured=3, whole=3)
    said = epochs(clock, Time(monkeypatch), count=2, steps=3, told_twice=told_twice)
    assert said == [None, None, 3 * STEP + CHECKPOINT] * 2


def test_steps_are_scaled_and_the_checkpoint_is_not(monkeypatch):
    clock = EpochClock(torch.device("cpu"), measured=4, whole=100)
    said = epochs(clock, Time(monkeypatch), count=2, steps=4)
    assert said == [None, None, None, 100 * STEP + CHECKPOINT] * 2


def test_a_loop_that_skips_steps_cannot_be_scaled(monkeypatch):
    clock = EpochClock(torch.device("cpu"), measured=4, whole=100)
    Time(monkeypatch)
    clock.start()
    clock.reached(4)
    with pytest.raises(InputError, match="--steps"):
        clock.tick()
