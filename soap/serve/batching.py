"""Micro-batching: a queue and a worker thread for each model, which runs equal operations of many clients together."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from soap.auxiliary import JointModel
from soap.serve.http_errors import busy
from soap.serve.limits import Limits
from soap.serve.operations import Operation, Trajectory, run_operation
from soap.shapes import Float, Tensor

GRADIENTS_PER_IMAGE = 40
"""Gradients per image of a full batch (40 is PGD on MNIST). A costlier operation runs in smaller batches."""

OVERLOAD_S = 1.0
"""Seconds that the queue stays short after it was full: the Retry-After time of a refused request."""


class OverdueError(Exception):
    """Every request of the batch has passed its deadline."""


@dataclass(kw_only=True, eq=False)
class Job:
    """A place in the queue for one image of one request.

    A job is admitted before its image is decoded; it can run once `operation` is set. deadline: monotonic time.
    """

    deadline: float
    operation: Operation | None = None
    x: Float[Tensor, "c h w"] | None = None
    label: int | None = None
    submitted: float = 0.0
    future: "Future[Trajectory]" = field(default_factory=Future)


class BatchWorker:
    """Queue and thread of one model. The oldest job runs first, in one batch with the jobs of an equal operation.

    A job with a cancelled future is dropped. `on_batch` is called with the operation and the size of every batch.
    """

    def __init__(self, model: JointModel, limits: Limits, on_batch: Callable[[Operation, int], None]) -> None:
        self.model, self.limits, self.on_batch = model, limits, on_batch
        self.running = 0
        self._queue: list[Job] = []
        self._changed = threading.Condition()
        self._closing = False
        self._overloaded_until = 0.0
        self._thread = threading.Thread(target=self._work, name=f"soap-{model.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Run the submitted jobs, then stop the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Number of jobs in the queue."""
        return len(self._pending())

    def admit(self, deadline: float) -> Job:
        """A place in the queue; raises status 503 if the queue is full.

        A long queue smooths a burst of requests. Under lasting overload it only makes every request slow. So after an
        overflow the queue is short for a second, and the oldest jobs beyond that length are refused too: the newest
        ones can be served soonest after they arrived.
        """
        with self._changed:
            now, queue = time.monotonic(), self._pending()
            short = min(self.limits.overload_queue, self.limits.queue)
            if len(queue) >= (short if now < self._overloaded_until else self.limits.queue):
                self._overloaded_until = now + OVERLOAD_S
                full, surplus = busy(f"the queue for {self.model.name} is full"), max(0, len(queue) - short)
                self._queue = queue[surplus:]
                for job in queue[:surplus]:
                    if job.future.set_running_or_notify_cancel():
                        job.future.set_exception(full)
                raise full
            job = Job(deadline=deadline)
            self._queue = [*queue, job]
            return job

    def submit(
        self, job: Job, operation: Operation, x: Float[Tensor, "c h w"], label: int | None
    ) -> "Future[Trajectory]":
        """Make an admitted job ready to run; its future gets the result."""
        with self._changed:
            if self._closing:
                raise busy("the service is stopping")
            job.operation, job.x, job.label, job.submitted = operation, x, label, time.monotonic()
            self._changed.notify_all()
        return job.future

    def _pending(self) -> list[Job]:
        return [job for job in self._queue if not job.future.cancelled()]

    def _work(self) -> None:
        while (found := self._next_batch()) is not None:
            operation, batch = found
            self.running = len(batch)
            result = self._run(operation, batch)
            self.running = 0
            for i, job in enumerate(batch):
                if isinstance(result, Exception):
                    job.future.set_exception(result)
                else:
                    job.future.set_result(result[i])

    def _run(self, operation: Operation, batch: list[Job]) -> list[Trajectory] | Exception:
        """The trajectories, or the exception: it belongs to these requests, and the thread must go on."""
        images = [job.x for job in batch if job.x is not None]
        try:
            with self._stopped_after(max(job.deadline for job in batch)):
                result = run_operation(operation, self.model, images, [job.label for job in batch])
            self.on_batch(operation, len(batch))
            return result
        except Exception as error:
            return error

    def _next_batch(self) -> tuple[Operation, list[Job]] | None:
        """Wait for the next batch; None once the worker is closed and no submitted job is left."""
        with self._changed:
            while True:
                self._queue = self._pending()
                ready = [(job.operation, job) for job in self._queue if job.operation is not None]
                if not ready:
                    if self._closing:
                        return None
                    self._changed.wait()
                    continue
                operation, first = ready[0]
                equal = [job for other, job in ready if other == operation]
                size = min(self.limits.batch, self.limits.batch * GRADIENTS_PER_IMAGE // operation.gradients)
                pause = first.submitted + self.limits.gather_s - time.monotonic()
                if len(equal) < size and pause > 0 and not self._closing:
                    self._changed.wait(pause)
                    continue
                batch = equal[: max(1, size)]
                self._queue = [job for job in self._queue if job not in batch]
                if batch := [job for job in batch if job.future.set_running_or_notify_cancel()]:
                    return operation, batch

    @contextmanager
    def _stopped_after(self, deadline: float) -> Iterator[None]:
        """Raise OverdueError at the first forward pass after the deadline.

        Not on a GPU: a pass may be under CUDA graph capture, which must not fail half-way, and batches are short there.
        """

        def check(module: Any, inputs: tuple[Tensor, ...]) -> None:
            if time.monotonic() > deadline and not inputs[0].is_cuda:
                raise OverdueError

        hook = self.model.encoder.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()
