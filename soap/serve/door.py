"""The door: a request for work without room is refused before it is routed or read."""

from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from soap.serve.batching import Worker

WORK = ("/v1/predict", "/v1/purify", "/v1/attack")


class Door:
    """Refuses a request for work, before it is read, where its model's queue is full.

    workers: by model; the first is the default. One for a model that is not served passes, to be told so.
    """

    def __init__(self, app: ASGIApp, *, workers: Mapping[str, Worker]) -> None:
        self.app = app
        self.workers = workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on. Nothing is kept for who passes: a slow body must not take the place of others."""
        if scope["type"] == "http" and scope["path"] in WORK and scope["method"] == "POST":
            worker = asked(self.workers, scope["query_string"])
            refusal = worker.refusal() if worker is not None else None
            if refusal is not None:
                raise refusal
        await self.app(scope, receive, send)


def asked(workers: Mapping[str, Worker], query: bytes) -> Worker | None:
    """The worker that a query asks for."""
    if b"model" not in query:
        return next(iter(workers.values()), None)
    names = parse_qs(query.decode("latin-1")).get("model")
    return workers.get(names[-1]) if names else next(iter(workers.values()), None)
