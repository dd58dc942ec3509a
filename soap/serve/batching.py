"""Micro-batching: a queue and a worker thread for each model, which runs equal operations of many clients together."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from soap.auxiliary import JointModel
from soap.serve import Limits
from soap.serve.responses import busy, error_response
from soap.serve.trajectories import Operation, Trajectory, run_operation
from soap.shapes import Float, Tensor

GRADIENTS_PER_IMAGE = 40
"""Gradients per image of a full batch (40 is PGD on MNIST). A costlier operation runs in smaller batches."""

FIRST_BATCH = 4
"""Images in the first batch after a pause; later batches double. The first batch of a burst must not take long."""

PAUSE_S = 0.5
"""Seconds without a request after which batches begin small again."""

OVERLOAD_S = 1.0
"""Seconds that the queue stays short after it was full: the Retry-After time of a refused request."""

ESTIMATE_WEIGHT = 0.2
"""Weight of the newest batch in the estimate of seconds per image."""


@dataclass(kw_only=True, eq=False)
class Job:
    """A place in the queue for one image of one request.

    A job is admitted before its image is decoded; it can run once `operation` is set. deadline: monotonic time.
    has_place: whether it counts in the length of the queue. A request with more images has one job with a place.
    """

    deadline: float
    body: bytes = b""
    operation: Operation | None = None
    x: Float[Tensor, "c h w"] | None = None
    label: int | None = None
    submitted: float = 0.0
    has_place: bool = True
    future: "Future[Trajectory]" = field(default_factory=Future)


class BatchWorker:
    """Queue and thread of one model. The oldest job runs first, in one batch with the jobs of an equal operation.

    A long queue smooths a burst of requests. Under lasting overload it only makes every request slow. So for a second
    after the queue was full, queue and batches are short: a request waits about `limits.overload_wait_s` for the
    running batch, by the time that recent batches took per image.

    A job with a cancelled future is dropped. `on_batch` is called with the operation and the size of every batch.
    """

    def __init__(self, model: JointModel, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.on_batch: Callable[[Operation, int], object] = lambda operation, images: None
        self.running = 0
        self._queue: list[Job] = []
        self._changed = threading.Condition()
        self._closing = False
        self._overloaded_until = 0.0
        self._largest_batch = FIRST_BATCH
        self.seconds_per_image = limits.overload_wait_s
        self.full = f"the queue for {model.name} is full"
        self.full_response = error_response(busy(self.full))  # made once: an overload sends it very often
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
        """Number of requests in the queue."""
        return sum(job.has_place for job in self._pending())

    def overflows(self) -> bool:
        """Whether the queue is full; if so, begin or prolong the overload.

        The oldest jobs of a queue that has become too long are refused: the newest ones can be served soonest after
        they arrived.
        """
        with self._changed:
            now, short = time.monotonic(), self._overload_length()
            self._queue = self._pending()
            places = [job for job in self._queue if job.has_place]
            if len(places) < (short if now < self._overloaded_until else self.limits.queue):
                return False
            self._overloaded_until = now + OVERLOAD_S
            refused = set(places[: max(0, len(places) - short)])
            self._queue = [job for job in self._queue if job not in refused]
            for job in refused:
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(busy(self.full))
            return True

    def admit(self, deadline: float, body: bytes = b"") -> Job:
        """A place in the queue; raises status 503 if the queue is full."""
        with self._changed:
            if self.overflows():
                raise busy(self.full)
            self._queue.append(job := Job(deadline=deadline, body=body))
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

    def submit_images(
        self, job: Job, operation: Operation, x: Float[Tensor, "n *shape"], label: int | None = None
    ) -> "list[Future[Trajectory]]":
        """Make an admitted job ready to run on the last image, and further jobs, which run before it, on the others.

        So a request keeps its one place in the queue until its last image runs.
        """
        with self._changed:
            further = [Job(deadline=job.deadline, has_place=False) for _ in x[1:]]
            place = self._queue.index(job) if job in self._queue else 0
            self._queue[place:place] = further
            return [self.submit(one, operation, image, label) for one, image in zip([*further, job], x, strict=True)]

    def _pending(self) -> list[Job]:
        return [job for job in self._queue if not job.future.cancelled()]

    def _overload_length(self) -> int:
        """Images that the model processes in `overload_wait_s`, at least one: queue and batch during an overload."""
        length = math.ceil(self.limits.overload_wait_s / self.seconds_per_image)
        return max(1, min(length, self.limits.batch_size, self.limits.queue))

    def _work(self) -> None:
        while (found := self._next_batch()) is not None:
            operation, batch = found
            self.running, start = len(batch), time.monotonic()
            result = self._run(operation, batch)
            self.running, seconds = 0, max(1e-6, time.monotonic() - start) / len(batch)
            self.seconds_per_image += ESTIMATE_WEIGHT * (seconds - self.seconds_per_image)
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
                    if not self._changed.wait(PAUSE_S):
                        self._largest_batch = FIRST_BATCH
                    continue
                operation, first = ready[0]
                equal = [job for other, job in ready if other == operation]
                size = self._batch_size(operation)
                pause = first.submitted + self.limits.gather_s - time.monotonic()
                if len(equal) < size and pause > 0 and not self._closing:
                    self._changed.wait(pause)
                    continue
                batch = equal[:size]
                self._largest_batch = min(2 * self._largest_batch, self.limits.batch_size)
                taken = set(batch)
                self._queue = [job for job in self._queue if job not in taken]
                if batch := [job for job in batch if job.future.set_running_or_notify_cancel()]:
                    return operation, batch

    def _batch_size(self, operation: Operation) -> int:
        """Images in the next batch, at most."""
        size = min(self.limits.batch_size, self.limits.batch_size * GRADIENTS_PER_IMAGE // operation.gradients)
        if time.monotonic() < self._overloaded_until:
            size = min(size, self._overload_length())
        return max(1, min(size, self._largest_batch))

    @contextmanager
    def _stopped_after(self, deadline: float) -> Iterator[None]:
        """Raise status 503 at the first forward pass after the deadline.

        Not on a GPU: a pass may be under CUDA graph capture, which must not fail half-way, and batches are short there.
        """

        def check(module: Any, inputs: tuple[Tensor, ...]) -> None:
            if time.monotonic() > deadline and not inputs[0].is_cuda:
                raise busy(f"the request took longer than {self.limits.timeout_s:g} s")

        hook = self.model.encoder.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()
