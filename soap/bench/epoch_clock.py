"""The seconds of an epoch of our training loop, from what it tells those who watch it."""

import time

import torch

from soap.bench.timing import synchronise
from soap.errors import InputError


class EpochClock:
    """Seconds of an epoch of our loop, which tells its step and asks after each whether to stop.

    Where an epoch was shortened to `measured` steps, the seconds of a step are scaled to the `whole` epoch, and what
    comes once an epoch (its checkpoint) is added once.
    """

    def __init__(self, device: torch.device, measured: int, whole: int) -> None:
        self.device, self.measured, self.whole = device, measured, whole
        self.step = self.epochs = 0

    def start(self) -> None:
        """An epoch begins."""
        self.ticks = 0
        self.began = self.first = self.last = self._now()

    def reached(self, step: int) -> None:
        """The loop tells how many steps it has made since training began."""
        self.step = step

    def tick(self) -> float | None:
        """A step was made; the seconds of the whole epoch if it was the last of one."""
        self.ticks += 1
        if self.measured != self.whole and self.ticks == 1:
            self.first = self._now()
        if self.measured != self.whole and self.ticks == self.measured - 1:
            self.last = self._now()
        if self.step != (self.epochs + 1) * self.measured:
            return None
        self.epochs += 1
        total = self._now() - self.began
        if self.measured == self.whole:
            return total
        if self.ticks != self.measured:
            raise InputError("the training loop does not tell its steps one by one; leave out --steps.")
        a_step = (self.last - self.first) / (self.measured - 2)
        return total + (self.whole - self.measured) * a_step

    def _now(self) -> float:
        synchronise(self.device)
        return time.perf_counter()
