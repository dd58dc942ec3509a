"""Start two processes with a launcher, as users do, on a free port."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port"),
    "accelerate": (
        "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--mixed_precision", "no",
        "--dynamo_backend", "no", "--num_processes", "2", "--main_process_port",
    ),
}  # fmt: skip


TIMEOUT_S = 300
"""A test that takes longer hangs."""


@contextmanager
def launched(launcher: str, *what: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run two processes of `what` in `folder`, with bundled data only; they are ended with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"OMP_NUM_THREADS": "1", "SOAP_COMMIT": "test", "SOAP_DATA": str(folder / "data")}
    with subprocess.Popen(
        [sys.executable, "-m", *LAUNCHERS[launcher], port, *what],
        cwd=folder,
        env={**os.environ, **settings, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # the launcher ends its processes first
                process.communicate(timeout=TIMEOUT_S)
