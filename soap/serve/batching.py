"""One thread a model, and requests of many clients gathered into batches for it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from soap.auxiliary import JointModel
from soap.serve.limits import Limits
from soap.serve.operations import Operation, Walk, perform
from soap.serve.problems import RequestError, busy
from soap.shapes import Float, Tensor

GRADIENTS = 40
"""A full batch may cost so many gradients an image (PGD's on digits); a costlier operation runs in smaller batches."""


CROWDED = 1.0
"""Seconds after a refusal in which few may wait: as long as who was refused is asked to stay away."""


class OverdueError(Exception):
    """All requests of a batch are past their time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One image of one request. deadline: when nobody waits for it any more, by the monotonic clock."""

    operation: Operation
    x: Float[Tensor, "c h w"]
    label: int | None
    deadline: float
    arrived: float = field(default_factory=time.monotonic)
    future: "Future[Walk]" = field(default_factory=Future)


class Place:
    """A place in a worker's queue, kept for a request while it is decoded; left for its job's, or at its end."""

    def __init__(self, worker: "Worker") -> None:
        self._worker: Worker | None = worker

    def leave(self) -> None:
        """Make room; again does nothing."""
        if self._worker is not None:
            self._worker.vacate()
            self._worker = None


class Worker:
    """Runs the requests for one model, oldest first, together with those that ask for the same.

    A job whose future was cancelled (its client went away) is dropped. `told` hears of every batch: its operation and
    how many it joined.
    """

    def __init__(self, model: JointModel, limits: Limits, told: Callable[[Operation, int], None]) -> None:
        self.model, self.limits, self.told = model, limits, told
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._running = 0
        self._coming = 0
        self._crowded_until = 0.0
        self._thread = threading.Thread(target=self._work, name=f"soap-{model.name}", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self) -> None:
        """Finish what was accepted, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether requests are being worked on."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Jobs in the queue that somebody waits for."""
        with self._changed:
            return sum(not job.future.cancelled() for job in self._waiting)

    @property
    def running(self) -> int:
        """Jobs under way."""
        return self._running

    def refusal(self) -> RequestError | None:
        """What one more request is told, or None where there is room for it."""
        with self._changed:
            return self._refusal()

    @contextmanager
    def place(self) -> Iterator["Place"]:
        """A place for a request that is still to be decoded; refused where there is none."""
        with self._changed:
            self._check_room()
            self._coming += 1
        place = Place(self)
        try:
            yield place
        finally:
            place.leave()

    def vacate(self) -> None:
        """One fewer is being decoded."""
        with self._changed:
            self._coming -= 1

    def submit(self, job: Job) -> "Future[Walk]":
        """Take a job into the queue; its future gets the result."""
        with self._changed:
            if self._closing:
                raise busy("the service is stopping")
            self._check_room()
            self._waiting.append(job)
            self._changed.notify_all()
        return job.future

    def _check_room(self) -> None:
        refusal = self._refusal()
        if refusal is not None:
            raise refusal

    def _refusal(self) -> RequestError | None:
        """Refuse where the queue is full. It is short for a while once it has overflowed.

        A long queue smooths a burst; where more comes than can be done, it only makes everyone wait. So then few wait,
        and are answered soon; the others are told at once.
        """
        self._waiting = deque(job for job in self._waiting if not job.future.cancelled())
        now, limits = time.monotonic(), self.limits
        room = min(limits.crowded, limits.queue) if now < self._crowded_until else limits.queue
        if len(self._waiting) + self._coming < room:
            return None
        self._crowded_until = now + CROWDED
        refusal = busy(f"the queue for {self.model.name} is full")
        while len(self._waiting) > limits.crowded:
            job = self._waiting.popleft()  # those who came last can be answered soonest after they came
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(refusal)
        return refusal

    def _work(self) -> None:
        while (batch := self._gather()) is not None:
            if not batch:
                continue
            self._running = len(batch)
            found = self._performed(batch)
            self._running = 0
            for row, job in enumerate(batch):
                if isinstance(found, Exception):
                    job.future.set_exception(found)
                else:
                    job.future.set_result(found[row])

    def _performed(self, batch: list[Job]) -> list[Walk] | Exception:
        """The walks of a batch; or what went wrong, for the requests' own handlers: the thread serves others too."""
        try:
            with self._stopped_after(max(job.deadline for job in batch)):
                walks = perform(batch[0].operation, self.model, [job.x for job in batch], [job.label for job in batch])
            self.told(batch[0].operation, len(batch))
            return walks
        except Exception as error:
            return error

    def _gather(self) -> list[Job] | None:
        """The next batch, without the jobs that nobody waits for; None when the work is over."""
        with self._changed:
            while True:
                if not self._waiting:
                    if self._closing:
                        return None
                    self._changed.wait()
                    continue
                first = self._waiting[0]
                mates = [job for job in self._waiting if job.operation == first.operation]
                most = max(1, min(self.limits.batch, self.limits.batch * GRADIENTS // first.operation.gradients))
                pause = first.arrived + self.limits.gather - time.monotonic()
                if len(mates) < most and pause > 0 and not self._closing:
                    self._changed.wait(pause)
                    continue
                chosen = mates[:most]
                self._waiting = deque(job for job in self._waiting if job not in chosen)
                return [job for job in chosen if job.future.set_running_or_notify_cancel()]

    @contextmanager
    def _stopped_after(self, deadline: float) -> Iterator[None]:
        """Stop a batch at its next pass through the encoder once its last request has given up.

        Not on a GPU: there a pass may be under recording, which must not fail half-way, and batches are short.
        """

        def check(module: Any, inputs: tuple[Tensor, ...]) -> None:
            if time.monotonic() > deadline and not inputs[0].is_cuda:
                raise OverdueError

        hook = self.model.encoder.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()
