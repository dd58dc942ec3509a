"""The process that keeps the service up: it holds the socket, starts the one that serves, and another if that dies."""

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import FrameType

import torch
from fastapi import FastAPI

from soap import zoo
from soap.errors import SoapError
from soap.serve import running
from soap.serve.app import create_app
from soap.serve.guard import check_binding
from soap.serve.journal import LOG
from soap.serve.limits import Limits

BREATH = 0.5
"""Seconds between two starts at least."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be served, and how: all that a fresh process needs to know. Fields as `create_app` takes them."""

    models: tuple[str, ...]
    token: str | None = field(repr=False)
    limits: Limits
    device: torch.device
    host: str
    log_requests: bool

    def check(self) -> None:
        """Refuse what can be seen to be wrong without loading a model."""
        check_binding(self.host, self.token)
        for name in self.models:
            zoo.weights_path(name)

    def app(self) -> FastAPI:
        """The application."""
        return create_app(self.models, token=self.token, limits=self.limits, device=self.device, host=self.host)

    @property
    def method(self) -> str:
        """How to start a process: a fork has all modules in memory and serves at once, but must not share a GPU."""
        return "fork" if self.device.type == "cpu" and sys.platform == "linux" else "spawn"


class Keeper:
    """Serves a plan on a bound socket, in a process of its own, until SIGTERM or Ctrl-C.

    This process never computes and never reads a request: it cannot be brought down by one. Clients that connect
    while nobody serves wait in the socket's queue.
    """

    def __init__(self, plan: Plan, bound: socket.socket) -> None:
        self.plan, self.bound = plan, bound
        self._pid = os.getpid()
        self._signal: int | None = None
        self._child: multiprocessing.process.BaseProcess | None = None

    def run(self, ready: Callable[[], None]) -> None:
        """Serve; `ready` is called once the first process answers. A first start that fails is an error."""
        running.log_to_stderr(requests=self.plan.log_requests)
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            problem = self._start()
            if problem is not None and self._signal is None:
                raise problem
            if self._signal is None:
                ready()
            self._keep()
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt

    def _keep(self) -> None:
        while self._child is not None:
            began = time.monotonic()
            self._child.join()
            if self._signal is not None:
                return
            LOG.error(json.dumps({"event": "worker ended", "code": self._child.exitcode}))
            time.sleep(max(0.0, began + BREATH - time.monotonic()))
            if self._signal is None and (problem := self._start()) is not None:
                LOG.error(json.dumps({"event": "worker did not start", "problem": str(problem)}))

    def _start(self) -> Exception | None:
        """A process that serves; or why there is none."""
        context = multiprocessing.get_context(self.plan.method)
        line, other = context.Pipe(duplex=False)
        self._child = context.Process(target=_serve, args=(self.plan, self.bound, other), name="soap-serve")  # type: ignore[attr-defined]
        with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads: numpy's, which are made for it
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child.start()
        other.close()
        if self._signal is not None:  # it came in between
            self._child.terminate()
        try:
            told: Exception | None = line.recv()
        except EOFError:
            self._child.join()
            told = RuntimeError(f"the process that serves ended with code {self._child.exitcode} before it answered")
        line.close()
        return told

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a fork that has not begun yet
            raise SystemExit(0)
        again, self._signal = self._signal is not None, self._signal or number
        self.bound.close()  # or clients would still be let into its queue
        if self._child is not None and self._child.pid is not None and self._child.exitcode is None:
            # uvicorn hurries at a second Ctrl-C
            os.kill(self._child.pid, signal.SIGINT if again and number == signal.SIGINT else signal.SIGTERM)

    def _end(self) -> None:
        """Leave no process behind."""
        self.bound.close()
        if self._child is not None and self._child.is_alive():
            self._child.terminate()
            self._child.join()


def _serve(plan: Plan, bound: socket.socket, line: Connection) -> None:
    """The process that serves: says None on the line once it does, or what went wrong."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the keeper passes it on
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    running.log_to_stderr(requests=plan.log_requests)
    threading.Thread(target=_leave_with_the_keeper, daemon=True).start()
    try:
        # Of a fork's threads the first alone is the parent's: had that one computed, OpenMP would wait for its helpers.
        with ThreadPoolExecutor(1) as fresh:
            app = fresh.submit(plan.app).result()
    except SoapError as error:
        line.send(error)
        raise SystemExit(1) from None
    running.run(app, bound, limits=plan.limits, started=lambda: line.send(None))


def _leave_with_the_keeper() -> None:
    """Stop, as on SIGTERM, when the keeper is gone: nobody could stop this process, or take the port again."""
    keeper = multiprocessing.parent_process()
    if keeper is not None:
        wait([keeper.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
