"""A real `soap serve` in processes of its own: where it is, what it logs, and how much memory it takes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hostile_pictures import MARKER
from raw import TOKEN

MODEL = "mnist-cnn-dr"
MB = 2**20

IMPATIENT = f"""
import socket, sys, torch
from soap.serve import Limits, running
from soap.serve.keeper import Keeper, Plan
seconds = float(sys.argv[1])
running.KEEP_ALIVE = seconds
plan = Plan(models=({MODEL!r},), token={TOKEN!r}, limits=Limits(seconds=seconds), device=torch.device("cpu"),
            host="127.0.0.1", log_requests=True)
bound = running.bind(plan.host, 0)
Keeper(plan, bound).run(lambda: print('{{"url": "%s"}}' % running.url(bound), flush=True))
"""
"""As `soap serve` does it, but with less patience: short tests have no ten seconds to wait."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A service under way."""

    process: subprocess.Popen[str]
    address: str
    log: Path

    @property
    def worker(self) -> int:
        """The process that serves; 0 while there is none."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def memory(self) -> int:
        """Bytes resident, of both processes."""
        total = 0
        for pid in (self.process.pid, self.worker):
            with contextlib.suppress(OSError):
                fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                total += int(fields["VmRSS"].split()[0]) * 1024
        return total

    def settled(self, most: float) -> int:
        """Memory once it is at most so much, or after half a minute."""
        end = time.monotonic() + 30
        while (now := self.memory()) > most and time.monotonic() < end:
            time.sleep(0.5)
        return now

    def leaks(self) -> list[str]:
        """Lines of the log that say more than they may."""
        return [line for line in self.log.read_text().splitlines() if not _discreet(line)]


def _discreet(line: str) -> bool:
    if line == "Stop it with Ctrl-C.":
        return True
    try:
        noted = json.loads(line)
    except ValueError:
        return False
    known = ({"time", "method", "route", "status", "ms"}, {"event", "code"})
    return set(noted) in known and MARKER not in line


@contextlib.contextmanager
def served(log: Path, *, seconds: float | None = None) -> Iterator[Served]:
    """The service; with `seconds` instead of its own patience where given. Whoever leaves finds it stopped."""
    command = [sys.executable, "-m", "soap", "serve", "--model", MODEL, "--port", "0", "--json", "-v"]
    if seconds is not None:
        command = [sys.executable, "-c", IMPATIENT, str(seconds)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "SOAP_TOKEN": TOKEN}
        ) as process,
    ):
        try:
            text = ""
            while not text.endswith("}\n"):
                line = process.stdout.readline() if process.stdout else ""
                assert line, f"the service did not start: {log.read_text()}"
                text += line
            yield Served(process=process, address=json.loads(text)["url"], log=log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                finally:
                    process.kill()
