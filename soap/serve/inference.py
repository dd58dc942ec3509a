"""The served models, their batch workers, and the handling of one admitted request: decode, wait, return."""

import asyncio
import ctypes
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from soap import zoo
from soap.auxiliary import JointModel
from soap.errors import InputError
from soap.recipes.own_network import Factory
from soap.recipes.trained_model import TrainedModel, open_model
from soap.serve import Limits
from soap.serve.admission import JOB_KEY
from soap.serve.batching import BatchWorker, Job
from soap.serve.monitoring import Metrics
from soap.serve.request_images import decode_image
from soap.serve.responses import busy
from soap.serve.trajectories import Operation, Trajectory
from soap.shapes import Float, Tensor

CODEC_THREADS = 2
"""Threads that decode and encode pictures. Each may hold tens of megabytes."""

TRIM_INTERVAL_S = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodedRequest:
    """What a request asks for, and how its response is made from the trajectory of each image."""

    operation: Operation
    x: Float[Tensor, "n *shape"]
    respond: Callable[[list[Trajectory]], Response]
    label: int | None = None


class InferenceService:
    """Loaded models with a batch worker each; the first model is the default."""

    def __init__(
        self,
        models: Sequence[str | JointModel],
        limits: Limits,
        device: str | torch.device,
        module: Factory | None = None,
    ) -> None:
        if not models:
            raise InputError("no model is given, expected at least one to serve; `soap models` lists them.")
        self.limits, self.metrics = limits, Metrics()
        loaded = [
            open_model(model, device=device, module=None if model in zoo.names() else module)
            for model in dict.fromkeys(models)
        ]
        self.models = {served.model.name: served for served in loaded}
        if len(self.models) < len(loaded):
            given = ", ".join(one.model.name for one in loaded)
            raise InputError(f"two of the models {given} have the same name; serve them separately.")
        self.workers: dict[str, BatchWorker] = {}
        for name, served in self.models.items():
            served.model.requires_grad_(False)  # once here, instead of in every call
            self.workers[name] = BatchWorker(served.model, limits)
            self.metrics.observe(name, self.workers[name])
        self._codecs = ThreadPoolExecutor(CODEC_THREADS, "soap-codec")

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Run the threads of the workers while the application runs; submitted jobs are run before the end."""
        for worker in self.workers.values():
            worker.start()
        trimming = asyncio.create_task(self._trim_memory())
        yield
        trimming.cancel()
        for worker in self.workers.values():
            worker.close()
        self._codecs.shutdown()

    def check_health(self) -> None:
        """Raise status 503 if a thread has stopped; only a restart of the process starts it again."""
        if not all(worker.alive for worker in self.workers.values()):
            raise busy("the thread of a model has stopped")

    async def run_image(
        self,
        request: Request,
        name: str,
        operation: Operation,
        respond: Callable[[TrainedModel, Trajectory], BaseModel],
        *,
        invert: bool,
        label: int | None = None,
    ) -> Response:
        """Run the operation on the image that is the body of an admitted request."""
        served, kind = self.models[name], request.headers.get("content-type", "")
        if label is not None and label >= served.model.classes:
            raise InputError(f"label is {label}, expected a class from 0 to {served.model.classes - 1}.")

        def encode(found: list[Trajectory]) -> Response:
            content = respond(served, found[0]).model_dump_json(by_alias=True)
            return Response(content, media_type="application/json")

        def decode(body: bytes) -> DecodedRequest:
            x = decode_image(body, kind, served.model.input_shape, self.limits, invert=invert)
            return DecodedRequest(operation=operation, x=x[None], respond=encode, label=label)

        return await self.run(request, name, decode)

    async def run(self, request: Request, name: str, decode: Callable[[bytes], DecodedRequest]) -> Response:
        """Decode the body of an admitted request and run its operation, in batches with other requests.

        The body is decoded and the response encoded in codec threads. The event loop is needed again only when the
        response is ready: under overload each of its turns takes long.
        """
        job: Job = request.scope[JOB_KEY]
        content, futures = Future[Response](), list[Future[Trajectory]]()

        def start() -> None:
            with _errors_to(content):
                decoded = decode(job.body)
                if content.cancelled():
                    return
                futures.extend(self.workers[name].submit_images(job, decoded.operation, decoded.x, decoded.label))

                def encode(done: Future[Trajectory]) -> None:
                    with _errors_to(content):
                        done.result()  # raises its error now, while others may still run
                        if all(future.done() for future in futures) and not content.done():
                            content.set_result(decoded.respond([future.result() for future in futures]))

                for future in futures:
                    future.add_done_callback(lambda done: self._codecs.submit(encode, done))

        self._codecs.submit(start)
        result, disconnect = asyncio.wrap_future(content), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((result, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise HTTPException(499, "the client disconnected.")
            return result.result()
        finally:
            result.cancel()
            disconnect.cancel()
            for future in futures:
                future.cancel()

    async def _trim_memory(self) -> None:
        """Return freed memory to the system every few seconds, forever; glibc alone keeps that of large requests."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        while trim is not None:
            await asyncio.sleep(TRIM_INTERVAL_S)
            await asyncio.wrap_future(self._codecs.submit(trim, 0))


@contextmanager
def _errors_to(future: Future[Any]) -> Iterator[None]:
    """Give an exception to the future instead of raising it; a cancelled future takes neither result nor exception."""
    try:
        yield
    except Exception as error:
        with suppress(InvalidStateError):
            future.set_exception(error)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
