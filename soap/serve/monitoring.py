"""What is noted about requests: one JSON line each, and counts for Prometheus. Never contents, queries or secrets."""

import json
import logging
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soap.serve.batching import Worker
from soap.serve.door import WORK
from soap.serve.operations import Operation
from soap.serve.problems import RequestError, busy

LOG = logging.getLogger("soap.serve")

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Metrics:
    """The service's figures, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        place: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("soap_requests", "Requests answered", ["route", "status"], **place)
        self.seconds = Histogram("soap_request_seconds", "Time from request to answer", ["route"], **place)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        what = ["model", "operation"]
        self.batch = Histogram("soap_batch_images", "Images run at once", what, buckets=sizes, **place)
        self.queue = Gauge("soap_queue_requests", "Requests waiting", ["model"], **place)
        self.running = Gauge("soap_running_requests", "Requests under way", ["model"], **place)

    def batched(self, model: str, operation: Operation, images: int) -> None:
        """Note a batch."""
        self.batch.labels(model, type(operation).__name__.lower()).observe(images)

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request, and log it where these are logged."""
        self.requests.labels(route, status).inc()
        self.seconds.labels(route).observe(seconds)
        if LOG.isEnabledFor(logging.INFO):
            line = {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1)}
            LOG.info(json.dumps({"time": round(time.time(), 3), **line}))

    def watch(self, worker: Worker) -> None:
        """Show how long a worker's queue is, and how many it works for."""
        self.queue.labels(worker.model.name).set_function(lambda: worker.waiting)
        self.running.labels(worker.model.name).set_function(lambda: worker.running)


class Journal:
    """Notes every request, and answers what no other handler did: never with a 5xx but 503."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and note what came of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception as error:
            problem = _problem(error)
            if problem is None:  # a defect: its kind and place, for its message may quote the request
                problem = busy("the service failed on this request")
                LOG.error(json.dumps({"event": "failure", "error": type(error).__name__, "place": _place(error)}))
            if status == 0:
                await problem.response()(scope, receive, noted)
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", scope["path"] if scope["path"] in WORK else "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.note(method, str(route), status, seconds)


def _problem(error: Exception) -> RequestError | None:
    """What is no defect: a refusal, or a client that went away while it was sending."""
    if isinstance(error, ClientDisconnect):
        return RequestError(499, "the client went away.")
    return error if isinstance(error, RequestError) else None


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "unknown"
    return f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}"
