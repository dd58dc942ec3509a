"""The outer middleware: error responses, security headers, Prometheus metrics and the JSON access log.

Metrics and log hold no contents, queries, headers or tokens of requests; the log has their X-Request-Id.
"""

import json
import logging
import platform
import re
import time
import uuid
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soap import __version__
from soap.serve.admission import MODEL_KEY, work_route
from soap.serve.batching import BatchWorker
from soap.serve.errors import busy, error_response, place_of

LOG = logging.getLogger("soap.serve")

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every response. The page loads nothing from other sites. 'wasm-unsafe-eval' allows WebAssembly, for models
that run in the browser, and no other generated code."""

REQUEST_ID = re.compile(r"[A-Za-z0-9._:=+/-]{1,128}")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Metrics:
    """Prometheus metrics of one service, in their own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        by_route, by_operation, sizes = ["route", "model"], ["model", "operation"], (1, 2, 4, 8, 16, 32, 64, 128)
        self.requests = Counter("soap_requests", "Responses sent", [*by_route, "status"], registry=registry)
        self.seconds = Histogram("soap_request_seconds", "Time from request to response", by_route, registry=registry)
        self.batch = Histogram(
            "soap_batch_images", "Images in one batch", by_operation, buckets=sizes, registry=registry
        )
        self.queue = Gauge("soap_queue_requests", "Requests waiting", ["model"], registry=registry)
        self.running = Gauge("soap_running_requests", "Requests in the running batch", ["model"], registry=registry)
        versions = {"version": __version__, "torch": torch.__version__, "python": platform.python_version()}
        Info("soap_build", "Versions", registry=registry).info(versions)
        ProcessCollector(registry=registry)

    def observe(self, model: str, worker: BatchWorker) -> None:
        """Record the size of every batch of a worker, its queue length and its running requests."""
        self.queue.labels(model).set_function(lambda: worker.waiting)
        self.running.labels(model).set_function(lambda: worker.running)
        worker.on_batch = lambda operation, images: self.batch.labels(model, operation.name).observe(images)


class AccessLog:
    """ASGI middleware that counts and logs every request, and adds request id and security headers to its response.

    An exception becomes an error response. An unexpected one becomes status 503; the log names its type and place but
    not its message, which may quote the request.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, then count and log the response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        request_id = Headers(scope=scope).get("x-request-id", "")
        if not REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex

        async def send_response(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # no-cache: a browser may store the page's files, but revalidates them by their ETag.
                is_file = scope["path"] == "/" or scope["path"].startswith("/static/")
                cache = {"Cache-Control": "no-cache" if is_file else "no-store"}
                MutableHeaders(scope=message).update({**SECURITY_HEADERS, **cache, "X-Request-Id": request_id})
            await send(message)

        try:
            await self.app(scope, receive, send_response)
        except Exception as error:
            if not isinstance(error, HTTPException):
                failure = {"event": "failure", "error": type(error).__name__, "place": place_of(error)}
                LOG.error({"request_id": request_id, **failure})
                error = busy("the service failed on this request")
            if status == 0:
                await error_response(error, scope["path"])(scope, receive, send_response)
        finally:
            route = getattr(scope.get("route"), "path", work_route(scope["path"]) or "other")
            model, seconds = scope.get(MODEL_KEY, ""), time.perf_counter() - start
            self.metrics.requests.labels(route, model, status).inc()
            self.metrics.seconds.labels(route, model).observe(seconds)
            if LOG.isEnabledFor(logging.INFO):
                method = scope["method"] if scope["method"] in METHODS else "other"
                line = {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1)}
                LOG.info({"request_id": request_id, **line})


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON line: the time, and the record's dictionary or message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line. Tracebacks are left out: they may quote a request."""
        content = record.msg if isinstance(record.msg, dict) else {"event": "server", "message": record.getMessage()}
        return json.dumps({"time": round(record.created, 3), **content})


def logging_config(*, log_requests: bool) -> dict[str, Any]:
    """Settings for `logging.config.dictConfig`: JSON lines of the service and of granian on standard error."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": f"{__name__}.{JsonFormatter.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "loggers": {
            LOG.name: {"handlers": ["stderr"], "level": "INFO" if log_requests else "ERROR", "propagate": False},
            "_granian": {"handlers": ["stderr"], "propagate": False},
            "asyncio": {"level": "CRITICAL"},  # its messages may quote a request
        },
    }
