"""Admission of a request: Host header and token, body within its limits and deadline, place in the model's queue.

This is ASGI middleware, so that a request that is refused under overload costs no routing and no validation.
"""

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from soap.errors import InputError
from soap.serve import Limits
from soap.serve.batching import BatchWorker
from soap.serve.responses import busy

WORK_PATHS = ("/v1/predict", "/v1/purify", "/v1/attack")
"""Routes that run a model. Only they read a body."""

PUBLIC_PATHS = ("/", "/docs", "/openapi.json", "/healthz")
"""Paths that need no token, besides /static/: a browser cannot send a token before the page has loaded."""

MIN_TOKEN_CHARACTERS = 16

JOB_KEY = "soap.job"
"""Key of the admitted `Job` in the ASGI scope."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str | None) -> None:
    """Raise if other machines can reach `host` and there is no token, or if the token is short."""
    if token is None:
        if not is_loopback(host):
            raise InputError(
                f"host is {host!r}, which other machines can reach; give a token (--token or $SOAP_TOKEN), "
                "or listen on 127.0.0.1."
            )
    elif not (len(token) >= MIN_TOKEN_CHARACTERS and token.isascii() and token.isprintable()):
        raise InputError(
            f"the token has {len(token)} characters, expected at least {MIN_TOKEN_CHARACTERS} printable ASCII "
            "characters; make one with `openssl rand -hex 32`."
        )


class Admission:
    """ASGI middleware that admits or refuses each request once.

    workers: batch worker by model name; the first is the default. token: None accepts every client. If `host` is
    loopback, the Host header must name this machine: web pages of other sites may have a name that resolves to
    127.0.0.1 (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, *, host: str, token: str | None, limits: Limits, workers: Mapping[str, BatchWorker]
    ) -> None:
        self.app, self.limits, self.workers = app, limits, workers
        self.checks_host = is_loopback(host)
        self.token = None if token is None else token.encode()
        self.body_bytes = 0  # of all requests in progress
        self.attacks = 0  # in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, for a model with a `Job` that has the whole body; or raise an HTTPException."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        self._check_access(scope["path"], headers)
        if scope["path"] not in WORK_PATHS or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        worker = self._worker(scope["query_string"])
        if worker is not None and worker.overflows():  # before the body is read: a refusal must be cheap
            await worker.full_response(scope, receive, send)
            return
        body, complete = bytearray(), False
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                await self._read(body, headers, receive)
                complete = True
                # The place is taken after the body has arrived: slow clients must not fill the queue.
                with self._queued(worker, scope, deadline, bytes(body)):
                    await self.app(scope, receive, send)
        except TimeoutError:
            if complete:
                raise busy(f"the request took longer than {self.limits.timeout_s:g} s") from None
            raise HTTPException(
                408, f"the body did not arrive in {self.limits.timeout_s:g} s; send it faster."
            ) from None
        finally:
            self.body_bytes -= len(body)

    def _worker(self, query: bytes) -> BatchWorker | None:
        """The worker of the requested model; None for an unknown model, whose name the route reports."""
        names = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("model")
        return self.workers.get(names[-1]) if names else next(iter(self.workers.values()))

    def _check_access(self, path: str, headers: Headers) -> None:
        """Raise status 400 for an ambiguous body length, 421 for a foreign Host header, 401 for a wrong token."""
        if headers.getlist("transfer-encoding") not in ([], ["chunked"]):  # proxies read other values differently
            raise HTTPException(400, "the Transfer-Encoding header is not `chunked`; send it once, or Content-Length.")
        if self.checks_host and not _names_loopback(headers.get("host", "")):
            raise HTTPException(421, "the Host header names another machine; use the address the service printed.")
        if self.token is None or path in PUBLIC_PATHS or path.startswith("/static/"):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        equal = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self.token)
        if scheme.lower() != "bearer" or not equal:
            raise HTTPException(401, "the token is missing or wrong; send the header `Authorization: Bearer TOKEN`.")

    async def _read(self, body: bytearray, headers: Headers, receive: Receive) -> None:
        """Read the body, which may be chunked; raise status 413 as soon as it is too long."""
        announced = headers.get("content-length", "0")[:20]
        size, more = int(announced) if announced.isdecimal() else 0, True
        while more and size <= self.limits.body:
            message = await receive()
            if message["type"] == "http.disconnect":  # granian also sends it for malformed chunks
                raise HTTPException(400, "the body is incomplete or its chunks are malformed; send all of it.")
            chunk = message.get("body", b"")
            body += chunk
            size, more = max(size, len(body)), message.get("more_body", False)
            self.body_bytes += len(chunk)
            if self.body_bytes > self.limits.total_body:
                raise busy("the service is reading too many large requests")
        if size > self.limits.body:
            expected = f"expected at most {self.limits.body:,}; send a smaller one."
            raise HTTPException(413, f"the body has {size:,} bytes or more, {expected}")

    @contextmanager
    def _queued(self, worker: BatchWorker | None, scope: Scope, deadline: float, body: bytes) -> Iterator[None]:
        """Hold a place in the queue of the worker, or raise status 503."""
        if worker is None:
            yield
            return
        is_attack = scope["path"] == "/v1/attack"
        if is_attack and self.attacks >= self.limits.attacks:
            raise busy(f"{self.limits.attacks} attacks are in progress")
        scope[JOB_KEY] = job = worker.admit(deadline, body)
        self.attacks += is_attack
        try:
            yield
        finally:
            self.attacks -= is_attack
            job.future.cancel()  # has no effect on a finished job


@lru_cache(64)
def _names_loopback(header: str) -> bool:
    """Whether a Host header, with or without a port, names this machine."""
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False
