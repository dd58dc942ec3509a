"""Run the application on granian: one worker process, restarted if it dies, behind a process that only supervises.

On Linux with the CPU, the worker has a model process, see `model_process`.
"""

import contextlib
import gc
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from fastapi import FastAPI
from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels

from soap.errors import InputError, SoapError
from soap.serve import Limits
from soap.serve.app import create_app
from soap.serve.monitoring import logging_config

if TYPE_CHECKING:
    from soap.serve.model_process import ModelProcess

MAX_HEADER_BYTES = 65_536
"""Buffer of a connection. granian reads a little more before it refuses longer headers."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of the server, sent to the worker process; address and port are those of `listen_address`.

    tls: certificate and key file, PEM. max_memory_mib: the worker is replaced when its resident memory
    or that of its model process exceeds it.
    """

    models: tuple[str, ...]
    address: str
    port: int
    limits: Limits
    device: torch.device
    module: str | None = None
    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    log_requests: bool = False
    tls: tuple[Path, Path] | None = None
    max_memory_mib: int | None = None

    @property
    def url(self) -> str:
        """The address for a browser."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def listen_address(host: str, port: int) -> tuple[str, int]:
    """The IP address of `host`, and the port, or a free one for port 0; raises if it cannot be used.

    granian shares a port with every process that requests it (SO_REUSEPORT), so it does not report a port in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"host is {host!r}, which is not an address of this machine ({error.strerror}).") from error
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            found: tuple[str, int] = probe.getsockname()[:2]
            return found
    except OSError as error:
        raise InputError(
            f"cannot listen at {host}, port {port} ({error.strerror}); choose another --port, or 0 for a free one."
        ) from error


def run_server(config: ServerConfig, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress get their response first. `on_ready` is called once.

    Raises the worker's error if it cannot load the models.
    """
    if config.device.type != "cpu":  # a forked process cannot use the GPU; it starts faster elsewhere
        multiprocessing.set_start_method("spawn", force=True)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    errors: list[SoapError] = []

    def watch_worker() -> None:
        announced = False
        with contextlib.suppress(EOFError):  # the server has stopped
            while (error := receiver.recv()) is None:
                if not announced:
                    _wait_until_listening(config)
                    on_ready()
                    announced = True
            errors.append(error)
            os.kill(os.getpid(), signal.SIGTERM)  # ends `serve`

    threading.Thread(target=watch_worker, daemon=True).start()
    certificate, key = config.tls or (None, None)
    Granian(
        "soap",
        address=config.address,
        port=config.port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        backpressure=config.limits.connections,
        http1_settings=HTTP1Settings(
            header_read_timeout=round(1000 * config.limits.timeout_s), max_buffer_size=MAX_HEADER_BYTES
        ),
        respawn_failed_workers=True,
        workers_kill_timeout=math.ceil(config.limits.timeout_s) + 2,
        workers_max_rss=config.max_memory_mib,
        ssl_cert=certificate,
        ssl_key=key,
        log_level=LogLevels.warning,
        log_dictconfig=logging_config(log_requests=config.log_requests),
    ).serve(target_loader=partial(_load_app, config, sender), wrap_loader=False)
    if errors:
        raise errors[0]


def _load_app(config: ServerConfig, sender: multiprocessing.connection.Connection) -> FastAPI:
    """The application, in the worker process; sends None to the supervisor, or the error that prevents loading."""
    # Until granian installs its own handlers, the worker has those of the supervisor, which do nothing here.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(AttributeError):  # Windows
        os.setpgrp()  # Ctrl-C reaches the supervisor alone, which stops the worker
    threading.Thread(target=_stop_with_supervisor, daemon=True).start()
    warnings.filterwarnings("ignore", module="PIL")  # its warnings quote the client's picture
    process = _model_process(config)
    try:
        settings = {name: getattr(config, name) for name in ("module", "token", "limits", "device", "allowed_hosts")}
        app = create_app(config.models, host=config.address, model_process=process, **settings)
    except SoapError as error:
        sender.send(error)
        threading.Event().wait()  # the supervisor ends this process
    gc.collect()
    gc.freeze()  # a full collection of the loaded packages takes a tenth of a second, in which no request is read
    sender.send(None)
    return app


def _model_process(config: ServerConfig) -> "ModelProcess | None":
    """A process for the batches, on Linux with the CPU. Elsewhere a fork is unsafe, and a GPU does the work."""
    if config.device.type != "cpu" or sys.platform != "linux":
        return None
    from soap.serve.model_process import ModelProcess

    return ModelProcess(config.models, config.module, config.max_memory_mib)


def _stop_with_supervisor() -> None:
    """Stop this worker if the supervisor is killed; otherwise it would continue to hold the port."""
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        multiprocessing.connection.wait([supervisor.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _wait_until_listening(config: ServerConfig) -> None:
    """Return once the worker accepts connections."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection((config.address, config.port), timeout=1):
            return
        time.sleep(0.02)
