"""The models that are served, their workers, and the way of a request: read it, wait its turn, answer."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch
from fastapi import Request

from soap.errors import InputError, unknown
from soap.serve import arrays, pictures
from soap.serve.batching import Job, OverdueError, Worker
from soap.serve.journal import Metrics
from soap.serve.limits import Limits
from soap.serve.memory import give_back
from soap.serve.operations import Mislead, Operation, Walk
from soap.serve.patience import DEADLINE
from soap.serve.problems import RequestError, busy
from soap.serve.subject import Subject, load
from soap.shapes import Tensor

Made = TypeVar("Made")

PICTURE_TYPES = ("image/png", "image/jpeg")
JSON_TYPE = "application/json"
PAINTERS = 2
"""Threads that decode and encode pictures: each may hold some tens of megabytes."""

TIDY = 5.0
"""Seconds."""


class Service:
    """Loaded models behind one worker each; the first model is the default."""

    def __init__(self, models: Sequence[str], limits: Limits, device: str | torch.device) -> None:
        if not models:
            raise InputError("no model is named, want at least one to serve; `soap models` lists them.")
        self.limits = limits
        self.metrics = Metrics()
        loaded = [load(name, device=device) for name in dict.fromkeys(models)]
        self.subjects = {subject.name: subject for subject in loaded}
        if len(self.subjects) < len(loaded):
            raise InputError(f"two of the models {', '.join(models)} have one name; serve them apart.")
        self.workers: dict[str, Worker] = {}
        self._attacks = 0
        self._ended = 0

    def open(self) -> None:
        """Start the threads."""
        self._pool = ThreadPoolExecutor(PAINTERS, "soap-pictures")
        for name, subject in self.subjects.items():
            self.workers[name] = Worker(subject.model, self.limits, partial(self.metrics.batched, name))
            self.metrics.watch(self.workers[name])
            self.workers[name].start()

    async def tidy(self) -> None:
        """Give memory back from time to time, if a request has ended since."""
        seen = self._ended
        while True:
            await asyncio.sleep(TIDY)
            if self._ended != seen:
                seen = self._ended
                await self.paint(give_back)

    def close(self) -> None:
        """Finish what was accepted, and stop the threads."""
        for worker in self.workers.values():
            worker.close()
        self._pool.shutdown()

    @property
    def healthy(self) -> bool:
        """Whether every model is being worked for."""
        return bool(self.workers) and all(worker.alive for worker in self.workers.values())

    def subject(self, name: str | None) -> Subject:
        """A model by name, or the first."""
        if name is None:
            return next(iter(self.subjects.values()))
        if name not in self.subjects:
            raise unknown("model", name, self.subjects)
        return self.subjects[name]

    async def walk(
        self,
        request: Request,
        subject: Subject,
        operation: Operation,
        *,
        invert: bool,
        label: int | None = None,
    ) -> Walk:
        """Read the request's image and run the operation on it, together with whoever asks for the same."""
        if label is not None and label >= subject.model.classes:
            raise InputError(f"label is {label}, want a class from 0 to {subject.model.classes - 1}.")
        attacking = isinstance(operation, Mislead)
        if attacking and self._attacks >= self.limits.attacks:
            raise busy(f"{self.limits.attacks} attacks are under way already")
        self._attacks += attacking
        worker = self.workers[subject.name]
        try:
            decode = await self._body(request, subject, invert)
            with worker.place() as place:
                x = await self.paint(decode)
                job = Job(operation=operation, x=x, label=label, deadline=request.scope[DEADLINE])
                place.leave()  # the job takes it
                return await self._turn(request, job, worker)
        finally:
            self._attacks -= attacking
            self._ended += 1

    async def paint(self, make: Callable[[], Made]) -> Made:
        """`make()` in a thread for pictures, so that others need not wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, make)

    async def _body(self, request: Request, subject: Subject, invert: bool) -> Callable[[], Tensor]:
        """The whole body, and with it how to make an image of it."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (*PICTURE_TYPES, JSON_TYPE):
            raise RequestError(415, f"want Content-Type {', '.join(PICTURE_TYPES)} or {JSON_TYPE}.")
        body = await request.body()
        if not body:
            raise RequestError(422, 'the body is empty; want a PNG or JPEG picture, or JSON like {"image": [[...]]}.')
        if kind == JSON_TYPE:
            return partial(arrays.decode, body, subject.shape, most=self.limits.json, invert=invert)
        return partial(pictures.decode, body, subject.shape, pixels=self.limits.pixels, invert=invert)

    async def _turn(self, request: Request, job: Job, worker: Worker) -> Walk:
        """The job's result, unless the client leaves first: then nobody works for it."""
        found: asyncio.Future[Any] = asyncio.wrap_future(worker.submit(job))
        gone: asyncio.Future[Any] = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait([found, gone], return_when=asyncio.FIRST_COMPLETED)
            if not found.done():
                raise RequestError(499, "the client went away.")
            walk: Walk = found.result()
            return walk
        except OverdueError:
            raise busy(f"the request took longer than {self.limits.seconds:g} s") from None
        finally:
            found.cancel()
            gone.cancel()


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
