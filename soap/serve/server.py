"""The application under uvicorn: bound, timed, logged, and stopped without losing an accepted request."""

import asyncio
import logging
import math
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from soap.errors import InputError
from soap.serve.connection import Connection
from soap.serve.journal import LOG
from soap.serve.limits import Limits
from soap.serve.refusal import QuickRefusal

BACKLOG = 512
KEEP_ALIVE = 15
"""Seconds: longer than clients keep an idle connection (5 is usual), or one would send as the other hangs up."""

LAST_TURNS = 5
"""Turns of the event loop: in one it accepts all who wait, in the next it knows them."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at `host` and `port` (0: any that is free)."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)  # asyncio turns Nagle's delay off if it is told that this is TCP
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


def server(app: FastAPI, limits: Limits, *, started: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server for the application; `run(sockets=[...])` serves until it is told to stop, and calls `started` once.

    On SIGTERM or Ctrl-C it answers what has arrived, accepts nothing more, and returns.
    """

    quick = QuickRefusal(app.state.service, app.state.admission)

    class Limited(Connection):
        patience = limits.seconds
        clients = limits.clients

        def refused(self, data: bytes) -> bytes | None:
            return quick(data)

    config = uvicorn.Config(
        app,
        http=Limited,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 2,
    )
    return _Server(config, started)


class _Server(uvicorn.Server):
    """uvicorn's, which by itself forgets who has connected but is not accepted yet when it is told to stop."""

    def __init__(self, config: uvicorn.Config, told: Callable[[], None]) -> None:
        super().__init__(config)
        self._told = told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the doors, and say so."""
        await super().startup(sockets)
        self._told()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let in who waits at the door, then close it."""
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)


def log_to_stderr(*, requests: bool) -> None:
    """One JSON line for every failure, and for every request where these are wanted."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.handlers = [handler]
    LOG.setLevel(logging.INFO if requests else logging.ERROR)
    LOG.propagate = False
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they quote what clients send,
    warnings.filterwarnings("ignore", module="PIL")  # and Pillow what is in their pictures


def run(app: FastAPI, bound: socket.socket, *, limits: Limits, started: Callable[[], None]) -> None:
    """Serve on a bound socket until a signal; SIGTERM is a good end."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)  # uvicorn raises the signal again once it has stopped
    server(app, limits, started=started).run(sockets=[bound])
