"""Admission of a request: Host header and token, body within its limits and deadline, place in the model's queue.

This is ASGI middleware, so that a request that is refused under overload costs no routing and no validation.
"""

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soap.errors import InputError
from soap.serve.batching import BatchWorker
from soap.serve.http_errors import RequestError, busy
from soap.serve.limits import Limits

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
    if token is None and not is_loopback(host):
        raise InputError(
            f"host is {host!r}, which other machines can reach; give a token (--token or $SOAP_TOKEN), "
            "or listen on 127.0.0.1."
        )
    if token is not None and not (len(token) >= MIN_TOKEN_CHARACTERS and token.isascii() and token.isprintable()):
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
        """Call the application with the whole body and a place in the queue, or raise a RequestError."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        self._check_access(scope["path"], headers)
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
            message = f"the body did not arrive in {self.limits.timeout_s:g} s; send it faster."
            raise RequestError(408, message) from None
        finally:
            self.body_bytes -= len(body)

    def _check_access(self, path: str, headers: Headers) -> None:
        """Raise status 400 for an ambiguous body length, 421 for a foreign Host header, 401 for a wrong token."""
        if headers.getlist("transfer-encoding") not in ([], ["chunked"]):  # proxies read other values differently
            raise RequestError(400, "the Transfer-Encoding header is not `chunked`; send it once, or Content-Length.")
        if self.checks_host and not _names_loopback(headers.get("host", "")):
            raise RequestError(421, "the Host header names another machine; use the address the service printed.")
        if self.token is None or path in PUBLIC_PATHS or path.startswith("/static/"):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        equal = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self.token)
        if scheme.lower() != "bearer" or not equal:
            raise RequestError(401, "the token is missing or wrong; send the header `Authorization: Bearer TOKEN`.")

    async def _read(self, body: bytearray, headers: Headers, receive: Receive) -> None:
        """Read the body, which may be chunked; raise status 413 as soon as it is too long."""
        announced = headers.get("content-length", "0")[:20]
        size, more = int(announced) if announced.isdecimal() else 0, True
        while more and size <= self.limits.body:
            message = await receive()
            if message["type"] == "http.disconnect":  # granian also sends it for malformed chunks
                raise RequestError(400, "the body is incomplete or its chunks are malformed; send all of it.")
            chunk = message.get("body", b"")
            body += chunk
            size, more = max(size, len(body)), message.get("more_body", False)
            self.body_bytes += len(chunk)
            if self.body_bytes > self.limits.total_body:
                raise busy("the service is reading too many large requests")
        if size > self.limits.body:
            limit = f"{self.limits.body:,}"
            raise RequestError(
                413, f"the body has {size:,} bytes or more, expected at most {limit}; send a smaller one."
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


def _names_loopback(header: str) -> bool:
    """Whether a Host header, with or without a port, names this machine."""
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False


def _replay(body: bytearray, receive: Receive) -> Receive:
    """A `receive` that returns the body in one message, and then the messages of `receive`."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
