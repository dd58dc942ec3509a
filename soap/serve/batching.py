"""Micro-batching: a queue and a worker thread for each model, which runs equal operations of many clients together."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any

from soap.auxiliary import JointModel
from soap.serve import Limits
from soap.serve.errors import busy
from soap.serve.trajectories import Operation, Trajectory, run_operation
from soap.shapes import Tensor

GRADIENTS_PER_IMAGE = 40
"""Gradients per image of a full batch (40 is PGD on MNIST). A costlier operation runs in smaller batches."""

FIRST_BATCH = 4
"""Images in the first batch after a pause; later batches double. The first batch of a burst must not take long."""

PAUSE_S = 0.5
"""Seconds without a request after which batches begin small again."""

OVERLOAD_S = 1.0
"""Seconds that the queue stays short after it was full: the Retry-After time of a refused request."""

CANDIDATES_PER_PLACE = 2.5
"""Requests that may be admitted during an overload, for each place of the next batch: not all are decoded in time."""

RunBatch = Callable[[Operation, JointModel, Sequence[Tensor], Sequence[int | None], float], list[Trajectory]]
"""`run_batch`, or the same in another process."""


@dataclass(kw_only=True, eq=False)
class Job:
    """The place of one request in the queue, and its images.

    A job is admitted before its images are decoded; it can run once `operation` is set. deadline: monotonic time.
    future: one trajectory for each image; cancel it to leave the queue.
    """

    deadline: float
    body: bytes = b""
    operation: Operation | None = None
    images: list[Tensor] = field(default_factory=list)
    label: int | None = None
    submitted: float = 0.0
    future: "Future[list[Trajectory]]" = field(default_factory=Future)


class BatchWorker:
    """Queue and thread of one model. The oldest job runs first, in one batch with jobs of an equal operation.

    A request is never split: one with many images may be a batch of its own.

    A long queue smooths a burst of requests. Under lasting overload it only makes every request slow. So for a second
    after the queue was full, batches take about `limits.overload_batch_s`, the queue is as long as a batch, and only
    requests that arrive shortly before the end of the running batch are admitted, by their number in the batch before.

    run: runs a batch; `run_batch` by default. `on_batch` is called with the operation and the number of images of every
    batch.
    """

    def __init__(self, model: JointModel, limits: Limits, run: RunBatch | None = None) -> None:
        self.model, self.limits, self._run = model, limits, run or run_batch
        self.on_batch: Callable[[Operation, int], object] = lambda operation, images: None
        self.running = 0
        self._overload_length = min(FIRST_BATCH, limits.batch_size, limits.queue)
        self._arrivals = self._arrivals_before = 0  # since the running batch began, and during the one before
        self._queue: list[Job] = []
        self._changed = threading.Condition()
        self._closing = False
        self._overloaded_until = 0.0
        self._largest_batch = FIRST_BATCH
        self._thread = threading.Thread(target=self._work, name=f"soap-{model.name}", daemon=True)
        self.start = self._thread.start
        self.is_alive = self._thread.is_alive

    def close(self) -> None:
        """Run the submitted jobs, then stop the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._pending())

    def check_room(self) -> None:
        """Raise status 503 if this request cannot be admitted: the queue is full, or it would wait long for a batch.

        Called once for every request. A full queue begins or prolongs the overload. Of a queue that has become too
        long the oldest jobs are refused: the newest ones can be served soonest after they arrived.
        """
        with self._changed:
            now, short = time.monotonic(), self._overload_length
            overloaded = now < self._overloaded_until
            self._arrivals += 1
            later = self._arrivals_before - self._arrivals  # requests to come before the running batch ends
            early = overloaded and self.running > 0 and later > CANDIDATES_PER_PLACE * short
            self._queue = self._pending()
            if len(self._queue) < (short if overloaded else self.limits.queue) and not early:
                return
            self._overloaded_until = now + OVERLOAD_S
            refusal = busy(f"the queue for {self.model.name} is full")
            while len(self._queue) > short:
                if (job := self._queue.pop(0)).future.set_running_or_notify_cancel():
                    job.future.set_exception(refusal)
            raise refusal

    def admit(self, deadline: float, body: bytes = b"") -> Job:
        """A place in the queue; raises status 503 if it is full by now."""
        with self._changed:
            if self.waiting >= self.limits.queue:
                raise busy(f"the queue for {self.model.name} is full")
            self._queue.append(job := Job(deadline=deadline, body=body))
            return job

    def submit(
        self, job: Job, operation: Operation, images: list[Tensor], label: int | None = None
    ) -> "Future[list[Trajectory]]":
        """Make an admitted job ready to run; its future gets the result."""
        with self._changed:
            if self._closing:
                raise busy("the service is stopping")
            job.operation, job.images, job.label, job.submitted = operation, images, label, time.monotonic()
            self._changed.notify_all()
        return job.future

    def _pending(self) -> list[Job]:
        return [job for job in self._queue if not job.future.cancelled()]

    def _work(self) -> None:
        while (found := self._next_batch()) is not None:
            operation, batch = found
            images = [image for job in batch for image in job.images]
            labels = [job.label for job in batch for _ in job.images]
            start = time.monotonic()
            try:
                deadline = max(job.deadline for job in batch)
                trajectories = iter(self._run(operation, self.model, images, labels, deadline))
                self.on_batch(operation, len(images))
            except Exception as error:  # it belongs to these requests, and the thread must go on
                for job in batch:
                    job.future.set_exception(error)
            else:
                for job in batch:
                    job.future.set_result(list(islice(trajectories, len(job.images))))
            self.running = 0
            self._adapt(len(images), time.monotonic() - start)

    def _adapt(self, images: int, seconds: float) -> None:
        """Lengthen the batches of an overload by one if one of this length was fast enough; shorten if it was not."""
        length, most = self._overload_length, min(self.limits.batch_size, self.limits.queue)
        if seconds < self.limits.overload_batch_s and images >= length:
            self._overload_length = min(most, length + 1)
        elif seconds > self.limits.overload_batch_s and images <= length:
            self._overload_length = max(1, length - 1)

    def _next_batch(self) -> tuple[Operation, list[Job]] | None:
        """Wait for the next batch; None once the worker is closed and no submitted job is left."""
        with self._changed:
            while True:
                self._queue = self._pending()
                ready = [(job.operation, job) for job in self._queue if job.operation is not None]
                if not ready:
                    if self._closing:
                        return None
                    if not self._changed.wait(PAUSE_S):
                        self._largest_batch = FIRST_BATCH
                    continue
                operation, first = ready[0]
                equal = [job for other, job in ready if other == operation]
                sizes = list(accumulate(len(job.images) for job in equal))
                most = self._batch_size(operation)
                pause = first.submitted + self.limits.gather_s - time.monotonic()
                if sizes[-1] < most and pause > 0 and not self._closing:
                    self._changed.wait(pause)
                    continue
                batch = [job for job, size in zip(equal, sizes, strict=True) if size <= most] or [first]
                self._largest_batch = min(2 * self._largest_batch, self.limits.batch_size)
                self._queue = [job for job in self._queue if job not in batch]
                if batch := [job for job in batch if job.future.set_running_or_notify_cancel()]:
                    self.running = sum(len(job.images) for job in batch)
                    self._arrivals_before, self._arrivals = self._arrivals, 0
                    return operation, batch

    def _batch_size(self, operation: Operation) -> int:
        """Images in the next batch, at most."""
        size = min(self.limits.batch_size, self.limits.batch_size * GRADIENTS_PER_IMAGE // operation.gradients)
        if time.monotonic() < self._overloaded_until:
            size = min(size, self._overload_length)
        return max(1, min(size, self._largest_batch))


def run_batch(
    operation: Operation,
    model: JointModel,
    images: Sequence[Tensor],
    labels: Sequence[int | None],
    deadline: float,
) -> list[Trajectory]:
    """`run_operation`, but raise status 503 at the first forward pass after the deadline (monotonic time).

    Not on a GPU: a pass may be under CUDA graph capture, which must not fail half-way, and batches are short there.
    """

    def check(module: Any, inputs: tuple[Tensor, ...]) -> None:
        if time.monotonic() > deadline and not inputs[0].is_cuda:
            raise busy("the request took longer than the service allows")

    hook = model.encoder.register_forward_pre_hook(check)
    try:
        return run_operation(operation, model, images, labels)
    finally:
        hook.remove()
