"""Estimate of the time left for a list of jobs, from the finished jobs of the same kind."""

import time
from collections.abc import Callable, Sequence

MULTIPLICATIONS_PER_SECOND = {"cpu": 2e10, "cuda": 2e12}
"""A first guess, until a job is done."""

KindAndWork = tuple[str, float]


class TimeLeft:
    """Time left for `jobs`, whose begin and end are reported in order.

    jobs: kind and approximate number of multiplications of each. device: its type, e.g. "cuda". clock: seconds.
    """

    def __init__(
        self, jobs: Sequence[KindAndWork], *, device: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.waiting = list(jobs)
        self.guess = 1 / MULTIPLICATIONS_PER_SECOND.get(device, MULTIPLICATIONS_PER_SECOND["cpu"])
        self.clock = clock
        self.began = clock()
        self.spent: dict[str, tuple[float, float]] = {}  # kind -> seconds, work

    def begin(self) -> None:
        """Record that the next job begins."""
        self.began = self.clock()

    def end(self, *, counts: bool = True) -> None:
        """Record that the job has ended; a skipped one does not count for the estimate."""
        kind, work = self.waiting.pop(0)
        if counts:
            seconds, before = self.spent.get(kind, (0.0, 0.0))
            self.spent[kind] = seconds + self.clock() - self.began, before + work

    def seconds(self, current: float | None = None) -> float:
        """Seconds until all jobs are done. current: the current job's own estimate, if it has one."""
        expected = [work * self._pace(kind) for kind, work in self.waiting]
        if expected:
            expected[0] = max(expected[0] - (self.clock() - self.began), 0.0) if current is None else current
        return sum(expected)

    def _pace(self, kind: str) -> float:
        """Seconds for a unit of work: of the same kind, else of all finished jobs, else the first guess."""
        alike = [self.spent[kind]] if kind in self.spent else list(self.spent.values())
        if not alike:
            return self.guess
        return sum(seconds for seconds, _ in alike) / sum(work for _, work in alike)


def duration_text(seconds: float) -> str:
    """A duration in words, e.g. "about 5 minutes"."""
    for name, length in (("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * length:
            return f"about {round(seconds / length)} {name}s"
    return "about a minute" if seconds >= 45 else "less than a minute"
