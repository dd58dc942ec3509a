"""The application under uvicorn: bound, timed, logged, and stopped without losing an accepted request."""

import asyncio
import logging
import math
import signal
import socket
import sys
from types import FrameType
from typing import NoReturn

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from soap.errors import InputError
from soap.serve.journal import LOG
from soap.serve.limits import Limits

BACKLOG = 512
KEEP_ALIVE = 15
"""Seconds: longer than clients keep an idle connection (5 is usual), or one would send as the other hangs up."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at `host` and `port` (0: any that is free)."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = found[0]
        bound = socket.socket(family, kind)
    except OSError as error:
        raise InputError(f"host is {host!r}, which is no address of this machine ({error.strerror}).") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise InputError(
            f"cannot listen at {host}, port {port} ({error.strerror}); choose another --port, 0 for any that is free."
        ) from error
    return bound


def url(bound: socket.socket) -> str:
    """The address to type into a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    """A server for the application; `run(sockets=[...])` serves until it is told to stop.

    On SIGTERM or Ctrl-C it accepts nothing more, answers what it has accepted, and returns.
    """

    class Protocol(TimedHeaders):
        patience = limits.seconds

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=limits.clients,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 2,
    )
    return uvicorn.Server(config)


def run(app: FastAPI, bound: socket.socket, *, limits: Limits, log_requests: bool) -> None:
    """Serve on a bound socket until a signal; SIGTERM is a good end."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO if log_requests else logging.ERROR)
    LOG.propagate = False
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # it quotes what clients send

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)  # uvicorn raises the signal again once it has stopped
    server(app, limits).run(sockets=[bound])


class TimedHeaders(H11Protocol):
    """HTTP/1.1 that hangs up on a client whose request line and headers take longer than `patience` seconds.

    uvicorn waits for them without end; from there on the application's own deadline applies.
    """

    patience = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Go on waiting while the headers are incomplete."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._timer is None and self.conn.trailing_data[0]:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.patience, self._hang_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hang_up(self) -> None:
        self.transport.abort()
