"""A real `soap serve` in its own processes, for tests: address, log, worker process and memory."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MB = 2**20
FALSE_ALARM = "Killing worker-1 after it refused to gracefully stop"

WITH_LIMITS = """
import json, sys, torch
from soap.serve import Limits
from soap.serve.server import ServerConfig, listen_address, run_server
models, token, limits, patch = json.loads(sys.argv[1])
exec(patch)
if __name__ == "__main__":
    address, port = listen_address("127.0.0.1", 0)
    config = ServerConfig(models=tuple(models), address=address, port=port, token=token, limits=Limits(**limits),
                          device=torch.device("cpu"), log_requests=True)
    run_server(config, lambda: print(json.dumps({"url": config.url}), flush=True))
"""
"""What `soap serve` does, with limits that the command line has no options for, and with patched functions."""


@dataclass(frozen=True, kw_only=True)
class ServiceProcess:
    """A running service."""

    process: subprocess.Popen[str]
    address: str
    log: Path

    @property
    def worker(self) -> int:
        """Process id of the worker; 0 while there is none. multiprocessing may have a helper process beside it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        workers = [int(pid) for pid in children if b"resource_tracker" not in _read(f"/proc/{pid}/cmdline")]
        return workers[-1] if workers else 0

    @property
    def model_process(self) -> int:
        """Process id of the worker's model process; 0 while there is none."""
        children = _read(f"/proc/{self.worker}/task/{self.worker}/children").split()
        return int(children[0]) if children else 0

    def memory(self) -> int:
        """Resident bytes of the supervisor, the worker and its model process."""
        total = 0
        for pid in (self.process.pid, self.worker, self.model_process):
            fields = dict(line.split(b":\t", 1) for line in _read(f"/proc/{pid}/status").splitlines())
            total += int(fields[b"VmRSS"].split()[0]) * 1024 if b"VmRSS" in fields else 0
        return total

    def settled_memory(self, limit: float) -> int:
        """Resident bytes once they are at most `limit`, or after 30 seconds."""
        end = time.monotonic() + 30
        while (now := self.memory()) > limit and time.monotonic() < end:
            time.sleep(0.5)
        return now

    def log_lines(self) -> list[dict[str, Any]]:
        """The JSON lines of the log; raises for any other line."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line != "Stop it with Ctrl-C."]

    def access_statuses(self) -> list[int]:
        """Status of every logged request, in order."""
        return [line["status"] for line in self.log_lines() if "status" in line]

    def server_messages(self) -> list[str]:
        """Logged messages that are not requests, without granian's false alarm at shutdown.

        granian waits for its worker in two threads. On a busy machine it may take a worker that has already ended for
        one that did not stop in time, and then logs that it kills it.
        """
        lines = [line for line in self.log_lines() if "status" not in line]
        return [str(line) for line in lines if line.get("message") != FALSE_ALARM]

    def log_leaks(self, marker: str) -> list[str]:
        """Lines of the log with other fields than allowed, or with the marker of client input."""
        allowed = ({"time", "request_id", "method", "route", "status", "ms"}, {"time", "event", "message"})
        return [str(line) for line in self.log_lines() if set(line) not in allowed or marker in str(line)]


@contextlib.contextmanager
def service_process(
    log: Path,
    *,
    models: Sequence[str],
    token: str | None = None,
    limits: dict[str, Any] | None = None,
    patch: str = "",
    options: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> Iterator[ServiceProcess]:
    """Start `soap serve` on a free port, and stop it at the end.

    limits, patch: fields of `Limits`, and Python code that runs before the start; `options` are for the command line.
    """
    command = [sys.executable, "-m", "soap", "serve", "--port", "0", "--json", "-v", *options]
    command += [word for model in models for word in ("--model", model)]
    if limits or patch:
        command = [sys.executable, "-c", WITH_LIMITS, json.dumps([models, token, limits or {}, patch])]
    environment = {**environment, **({"SOAP_TOKEN": token} if token else {})}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        try:
            text = ""
            while not text.endswith("}\n"):
                line = process.stdout.readline() if process.stdout else ""
                assert line, f"the service did not start: {log.read_text()}"
                text += line
            yield ServiceProcess(process=process, address=json.loads(text)["url"], log=log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            finally:
                process.kill()  # the worker stops when its supervisor is gone


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for a condition that must become true within a minute."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether the process has ended."""
    status = _read(f"/proc/{pid}/status")
    return not status or b"State:\tZ" in status


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # the process has ended
        return b""
