"""`EpochClock` with a fake clock."""

import pytest
import torch

from soap.bench.training import EpochClock
from soap.errors import InputError

STEP, CHECKPOINT = 2.0, 50.0


class Time:
    """A clock that the test sets."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


def epochs(clock, time, *, count, steps, told_twice=False):
    """The results of `tick` for a loop that saves a checkpoint at the end of each epoch."""
    said = []
    clock.start()
    for step in range(1, count * steps + 1):
        time.now += STEP
        if told_twice:
            clock.step = step
        if step % steps == 0:
            time.now += CHECKPOINT
            clock.step = step
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
    clock.step = 4
    with pytest.raises(InputError, match="--steps"):
        clock.tick()
