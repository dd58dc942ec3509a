"""How much longer a list of jobs will take, about: from those that are done, by kind."""

import time
from collections.abc import Callable, Sequence

PER_SECOND = {"cpu": 2e10, "cuda": 2e12}
"""Multiplications in a second, roughly: a first guess, until a job is done."""

Task = tuple[str, float]


class TimeLeft:
    """Told when each of `jobs` begins and ends, in their order; says how long the rest will take.

    jobs: the kind of each and its work, roughly, in multiplications. device: its type, e.g. "cuda".
    clock: seconds from any beginning.
    """

    def __init__(self, jobs: Sequence[Task], *, device: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.waiting = list(jobs)
        self.guess = 1 / PER_SECOND.get(device, PER_SECOND["cpu"])
        self.clock = clock
        self.began = clock()
        self.spent: dict[str, tuple[float, float]] = {}  # kind -> seconds, work

    def begin(self) -> None:
        """The first of the jobs that wait begins now."""
        self.began = self.clock()

    def end(self, *, counts: bool = True) -> None:
        """It has ended; it does not count for later ones where it was skipped."""
        kind, work = self.waiting.pop(0)
        if counts:
            seconds, before = self.spent.get(kind, (0.0, 0.0))
            self.spent[kind] = seconds + self.clock() - self.began, before + work

    def seconds(self, current: float | None = None) -> float:
        """Until all jobs are done; `current` is what the one under way says of itself."""
        expected = [work * self._pace(kind) for kind, work in self.waiting]
        if expected:
            expected[0] = max(expected[0] - (self.clock() - self.began), 0.0) if current is None else current
        return sum(expected)

    def _pace(self, kind: str) -> float:
        """Seconds for a unit of work: of the same kind, else of all that is done, else a guess."""
        alike = [self.spent[kind]] if kind in self.spent else list(self.spent.values())
        if not alike:
            return self.guess
        return sum(seconds for seconds, _ in alike) / sum(work for _, work in alike)


def about(seconds: float) -> str:
    """A span of time in words, e.g. "about 5 minutes"."""
    for name, length in (("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * length:
            return f"about {round(seconds / length)} {name}s"
    return "about a minute" if seconds >= 45 else "less than a minute"
