"""Admission of a request: access check, body within its limits and deadline, place in the model's queue.

This is ASGI middleware, so that a request that is refused under overload costs no routing and no validation.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soap.serve.access import AccessControl
from soap.serve.batching import BatchWorker
from soap.serve.http_errors import RequestError, busy
from soap.serve.limits import Limits

WORK_PATHS = ("/v1/predict", "/v1/purify", "/v1/attack")
"""Routes that run a model. Only they read a body."""

JOB_KEY = "soap.job"
"""Key of the admitted `Job` in the ASGI scope."""


class Admission:
    """ASGI middleware that admits or refuses each request once.

    workers: batch worker by model name; the first is the default.
    """

    def __init__(
        self, app: ASGIApp, *, access: AccessControl, limits: Limits, workers: Mapping[str, BatchWorker]
    ) -> None:
        self.app, self.access, self.limits, self.workers = app, access, limits, workers
        self.body_bytes = 0  # of all requests in progress
        self.attacks = 0  # in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with the whole body and a place in the queue, or raise a RequestError."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if headers.getlist("transfer-encoding") not in ([], ["chunked"]):  # proxies read other values differently
            raise RequestError(400, "the Transfer-Encoding header is not `chunked`; send it once, or Content-Length.")
        self.access.check(scope["path"], headers)
        if scope["path"] not in WORK_PATHS or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body, complete = bytearray(), False
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                await self._read(body, headers, receive)
                complete = True
                # The place is taken after the body has arrived: slow clients must not fill the queue.
                with self._queued(scope, deadline):
                    await self.app(scope, _replay(body, receive), send)
        except TimeoutError:
            if complete:
                raise busy(f"the request took longer than {self.limits.timeout_s:g} s") from None
            raise RequestError(
                408, f"the body did not arrive in {self.limits.timeout_s:g} s; send it faster."
            ) from None
        finally:
            self.body_bytes -= len(body)

    async def _read(self, body: bytearray, headers: Headers, receive: Receive) -> None:
        """Read the body, which may be chunked; raise status 413 as soon as it is too long."""
        announced = headers.get("content-length", "0")[:20]
        if announced.isdecimal() and int(announced) > self.limits.body:
            raise self._too_large(announced)
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":  # granian also sends it for malformed chunks
                raise RequestError(400, "the body is incomplete or its chunks are malformed; send all of it.")
            chunk = message.get("body", b"")
            body += chunk
            self.body_bytes += len(chunk)
            more = message.get("more_body", False)
            if len(body) > self.limits.body:
                raise self._too_large(f"more than {self.limits.body:,}")
            if self.body_bytes > self.limits.total_body:
                raise busy("the service is reading too many large requests")

    def _too_large(self, size: str) -> RequestError:
        return RequestError(
            413, f"the body is {size} bytes, expected at most {self.limits.body:,}; send a smaller one."
        )

    @contextmanager
    def _queued(self, scope: Scope, deadline: float) -> Iterator[None]:
        """Hold a place in the queue of the requested model, or raise status 503 if the queue is full.

        A request for an unknown model gets no place: its route reports the name.
        """
        attack = scope["path"] == "/v1/attack"
        if attack and self.attacks >= self.limits.attacks:
            raise busy(f"{self.limits.attacks} attacks are in progress")
        names = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("model")
        worker = self.workers.get(names[-1]) if names else next(iter(self.workers.values()))
        if worker is None:
            yield
            return
        scope[JOB_KEY] = job = worker.admit(deadline)
        self.attacks += attack
        try:
            yield
        finally:
            self.attacks -= attack
            job.future.cancel()  # has no effect on a finished job


def _replay(body: bytearray, receive: Receive) -> Receive:
    """A `receive` that returns the body in one message, and then the messages of `receive`."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal first
        message, first = first, None
        return await receive() if message is None else message

    return replay
