"""The served models, their batch workers, and the handling of one admitted request: decode, wait, return."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from soap import zoo
from soap._runtime.allocator import return_free_memory
from soap.auxiliary import JointModel
from soap.errors import InputError
from soap.recipes.own_network import Factory
from soap.recipes.trained_model import TrainedModel, open_model
from soap.serve import Limits
from soap.serve.admission import JOB_KEY
from soap.serve.batching import BatchWorker, Job, run_batch
from soap.serve.errors import busy
from soap.serve.monitoring import Metrics
from soap.serve.trajectories import Operation, Trajectory
from soap.shapes import Tensor

if TYPE_CHECKING:
    from soap.serve.model_process import ModelProcess

CODEC_THREADS = 2
"""Threads that decode and encode pictures. Each may hold tens of megabytes."""

TRIM_INTERVAL_S = 5.0


class DecodedRequest(NamedTuple):
    """What a request asks for, and how its response is made from the trajectory of each image."""

    operation: Operation
    images: list[Tensor]
    label: int | None
    respond: Callable[[list[Trajectory]], Response]


def open_models(
    sources: Sequence[str | JointModel], device: str | torch.device, module: Factory | None
) -> list[TrainedModel]:
    """Load the models of a service, with frozen parameters; raises if two have the same name."""
    if not sources:
        raise InputError("no model is given, expected at least one to serve; `soap models` lists them.")
    opened: dict[str, TrainedModel] = {}
    for source in dict.fromkeys(sources):
        served = open_model(source, device=device, module=None if source in zoo.names() else module)
        served.model.requires_grad_(False)  # once here, instead of in every call
        if opened.setdefault(served.model.name, served) is not served:
            raise InputError(f"two of the models have the name {served.model.name}; serve them separately.")
    return list(opened.values())


class InferenceService:
    """Loaded models with a batch worker each; the first model is the default.

    model_process: runs the batches, and has loaded the same models; None to run them in the threads of the workers.
    """

    def __init__(
        self,
        models: Sequence[str | JointModel],
        limits: Limits,
        device: str | torch.device,
        module: Factory | None = None,
        model_process: "ModelProcess | None" = None,
    ) -> None:
        self.limits, self.metrics = limits, Metrics()
        self.models = {served.model.name: served for served in open_models(models, device, module)}
        run = run_batch if model_process is None else model_process.run_batch
        self.workers = {name: BatchWorker(served.model, limits, run) for name, served in self.models.items()}
        for name, worker in self.workers.items():
            self.metrics.observe(name, worker)
        self._process = model_process
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
        if self._process is not None:
            self._process.stop()

    def check_health(self, *names: str) -> None:
        """Raise status 503 if the thread of a model (no name: of any) has stopped; only a restart starts it again."""
        if not all(self.workers[name].is_alive() for name in names or self.workers):
            raise busy("the thread of a model has stopped")

    async def run(self, request: Request, name: str, decode: Callable[[bytes], DecodedRequest]) -> Response:
        """Decode the body of an admitted request and run its operation, in batches with other requests.

        The body is decoded and the response encoded in codec threads. The event loop is needed again only when the
        response is ready: under overload each of its turns takes long.
        """
        job: Job = request.scope[JOB_KEY]
        response = Future[Response]()

        def in_codec_thread(function: Callable[[], object]) -> None:
            def run() -> None:
                try:
                    function()
                except Exception as error:
                    with suppress(InvalidStateError):  # the request was given up
                        response.set_exception(error)

            self._codecs.submit(run)

        def start() -> None:
            decoded = decode(job.body)
            done = self.workers[name].submit(job, decoded.operation, decoded.images, decoded.label)
            done.add_done_callback(lambda done: in_codec_thread(partial(end, decoded, done)))

        def end(decoded: DecodedRequest, done: Future[list[Trajectory]]) -> None:
            response.set_result(decoded.respond(done.result()))

        in_codec_thread(start)
        result, disconnect = asyncio.wrap_future(response), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((result, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise HTTPException(499, "the client disconnected.")
            return result.result()
        finally:
            result.cancel()
            disconnect.cancel()

    async def _trim_memory(self) -> None:
        """Return freed memory to the system every few seconds, forever; glibc alone keeps that of large requests."""
        while True:
            await asyncio.sleep(TRIM_INTERVAL_S)
            await asyncio.wrap_future(self._codecs.submit(return_free_memory))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
