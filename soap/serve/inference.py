"""The served models, their batch workers, and the handling of one admitted request: decode, wait, return."""

import asyncio
import ctypes
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch
from fastapi import Request

from soap.errors import InputError, unknown
from soap.serve.admission import JOB_KEY
from soap.serve.batching import BatchWorker, OverdueError
from soap.serve.http_errors import RequestError, busy
from soap.serve.limits import Limits
from soap.serve.monitoring import Metrics
from soap.serve.operations import Operation, ServedModel, Trajectory, load_served_model
from soap.serve.request_images import decode_image

Result = TypeVar("Result")

CODEC_THREADS = 2
"""Threads that decode and encode pictures. Each may hold tens of megabytes."""

TRIM_INTERVAL_S = 5.0


class InferenceService:
    """Loaded models with a batch worker each; the first model is the default."""

    def __init__(self, models: Sequence[str], limits: Limits, device: str | torch.device) -> None:
        if not models:
            raise InputError("no model is given, expected at least one to serve; `soap models` lists them.")
        self.limits, self.metrics = limits, Metrics()
        loaded = [load_served_model(name, device=device) for name in dict.fromkeys(models)]
        self.models = {served.name: served for served in loaded}
        if len(self.models) < len(loaded):
            raise InputError(f"two of the models {', '.join(models)} have the same name; serve them separately.")
        self.workers = {
            name: BatchWorker(served.model, limits, partial(self.metrics.count_batch, name))
            for name, served in self.models.items()
        }
        self.metrics.observe_workers(self.workers)
        self._codecs = ThreadPoolExecutor(CODEC_THREADS, "soap-codec")

    def start(self) -> None:
        """Start the worker threads."""
        for worker in self.workers.values():
            worker.start()

    def close(self) -> None:
        """Run the submitted jobs and stop all threads."""
        for worker in self.workers.values():
            worker.close()
        self._codecs.shutdown()

    def model(self, name: str | None) -> ServedModel:
        """A model by name; None for the first."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise unknown("model", name, self.models)
        return self.models[name]

    async def run(
        self, request: Request, served: ServedModel, operation: Operation, *, invert: bool, label: int | None = None
    ) -> Trajectory:
        """Decode the image of an admitted request and run the operation on it, in a batch with other requests."""
        if label is not None and label >= served.model.classes:
            raise InputError(f"label is {label}, expected a class from 0 to {served.model.classes - 1}.")
        kind, body = request.headers.get("content-type", ""), await request.body()
        shape = served.model.input_shape
        x = await self.in_thread(partial(decode_image, body, kind, shape, self.limits, invert=invert))
        future = self.workers[served.name].submit(request.scope[JOB_KEY], operation, x, label)
        result: asyncio.Future[Any] = asyncio.wrap_future(future)
        disconnect: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait([result, disconnect], return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise RequestError(499, "the client disconnected.")
            trajectory: Trajectory = result.result()
            return trajectory
        except OverdueError:
            raise busy(f"the request took longer than {self.limits.timeout_s:g} s") from None
        finally:
            result.cancel()
            disconnect.cancel()

    async def in_thread(self, function: Callable[[], Result]) -> Result:
        """Run `function` in a codec thread, so that it does not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._codecs, function)

    async def trim_memory(self) -> None:
        """Return freed memory to the system every few seconds, forever; glibc alone keeps that of large requests."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        while trim is not None:
            await asyncio.sleep(TRIM_INTERVAL_S)
            await self.in_thread(partial(trim, 0))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
