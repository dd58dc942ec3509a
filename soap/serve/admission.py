"""Admission of a request: Host header and token, body within its limits and deadline, place in the model's queue.

This is ASGI middleware, so that a request that is refused under overload costs no routing and no validation.
"""

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Collection, Mapping
from functools import lru_cache
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from soap.errors import InputError
from soap.serve import Limits
from soap.serve.batching import BatchWorker, Job
from soap.serve.errors import busy

WORK_PATHS = ("/v1/predict", "/v1/purify", "/v1/attack")
"""Routes that run the model in the query parameter `model`. Only they and `INFER_ROUTE` read a body."""

INFER_ROUTE = "/v2/models/{name}/infer"
INFER_PATH = re.compile("/v2/models/([^/]+)/infer")

HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
PUBLIC_PATHS = ("/", "/docs", "/openapi.json", *HEALTH_PATHS, "/v2/health/live", "/v2/health/ready")
"""Paths that need no token, besides /static/: a browser cannot send a token before the page has loaded, and probes
send none."""

PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-real-ip")

MIN_TOKEN_CHARACTERS = 16

JOB_KEY = "soap.job"
"""Key of the admitted `Job` in the ASGI scope."""

MODEL_KEY = "soap.model"
"""Key of the name of the served model that a request is for."""


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
    loopback, the Host header must name this machine or one of `allowed_hosts`: web pages of other sites may have a
    name that resolves to 127.0.0.1 (DNS rebinding). On other addresses it is checked if there are allowed hosts.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        token: str | None,
        limits: Limits,
        workers: Mapping[str, BatchWorker],
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self.app, self.limits, self.workers = app, limits, workers
        self.allowed_hosts = {name.lower() for name in allowed_hosts}
        self.checks_host = is_loopback(host) or bool(allowed_hosts)
        self.token = None if token is None else token.encode()
        self.body_bytes = 0  # of all requests in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, for a model with a `Job` that has the whole body; or raise an HTTPException."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        self._check_access(scope, headers)
        if work_route(scope["path"]) is None or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        worker, job = self._worker(scope), None
        if worker is not None:
            worker.check_room()  # before the body is read: a refusal must be cheap
        body, deadline = bytearray(), time.monotonic() + self.limits.timeout_s
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                await self._read(body, headers, receive)
                # The place is taken after the body has arrived: slow clients must not fill the queue.
                job = Job(deadline=deadline) if worker is None else worker.admit(deadline, bytes(body))
                scope[JOB_KEY] = job
                await self.app(scope, receive, send)
        except TimeoutError:
            if job is None:
                raise HTTPException(
                    408, f"the body did not arrive in {self.limits.timeout_s:g} s; send it faster."
                ) from None
            raise busy(f"the request took longer than {self.limits.timeout_s:g} s") from None
        finally:
            self.body_bytes -= len(body)
            if job is not None:
                job.future.cancel()  # has no effect on a finished job

    def _worker(self, scope: Scope) -> BatchWorker | None:
        """The worker of the requested model; None for an unknown model, whose name the route reports."""
        if found := INFER_PATH.fullmatch(scope["path"]):
            name = found[1]
        else:
            query = scope["query_string"].decode("latin-1")
            name = parse_qs(query, keep_blank_values=True).get("model", [next(iter(self.workers))])[-1]
        if name in self.workers:
            scope[MODEL_KEY] = name
        return self.workers.get(name)

    def _check_access(self, scope: Scope, headers: Headers) -> None:
        """Raise status 400 for an ambiguous body length, 421 for a foreign Host header, 401 for a wrong token."""
        if headers.getlist("transfer-encoding") not in ([], ["chunked"]):  # proxies read other values differently
            raise HTTPException(400, "the Transfer-Encoding header is not `chunked`; send it once, or Content-Length.")
        path, host = scope["path"], _host_name(headers.get("host", ""))
        if self.checks_host and not is_loopback(host) and host not in self.allowed_hosts:
            raise HTTPException(
                421,
                "the Host header names another machine; use the address the service printed, or start the service "
                "with --allowed-host and the name.",
            )
        if self.token is None or path in PUBLIC_PATHS or path.startswith("/static/"):
            return
        if path == "/metrics" and _is_local(scope, headers) and is_loopback(host):
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


def work_route(path: str) -> str | None:
    """The route of a path that runs a model; None for other paths."""
    return path if path in WORK_PATHS else INFER_ROUTE if INFER_PATH.fullmatch(path) else None


@lru_cache(64)
def _host_name(header: str) -> str:
    """The name in a Host header, with or without a port; empty if it is malformed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_local(scope: Scope, headers: Headers) -> bool:
    """Whether a program of this machine sent the request for itself, as far as its headers show."""
    return is_loopback((scope.get("client") or [""])[0]) and not any(name in headers for name in PROXY_HEADERS)
