"""The process that keeps the service up: it replaces one that dies, passes signals on, and leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_service import MODELS

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

import httpx

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SERVE = [sys.executable, "-m", "soap", "serve", "--port", "0", "--json"]
SPAWNING = """
from soap.serve.keeper import Plan
Plan.method = "spawn"
from soap.cli import main
if __name__ == "__main__":
    main()
"""


@contextlib.contextmanager
def kept(tmp_path, *, command=SERVE):
    """A service in processes of its own: its keeper, and its address."""
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen([*command, "--model", MODELS[0]], stdout=subprocess.PIPE, stderr=errors, text=True) as keeper,
    ):
        try:
            text = ""
            while not text.endswith("}\n"):
                line = keeper.stdout.readline()
                assert line, (tmp_path / "errors").read_text()
                text += line
            yield keeper, json.loads(text)["url"]
        finally:
            keeper.kill()


def worker(keeper):
    """The process that serves, or 0. A helper of multiprocessing's may stand beside it."""
    children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()
    own = [int(pid) for pid in children if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return own[-1] if own else 0


def until(holds):
    """Wait for something that is sure to come."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pid):
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_one_that_is_killed_is_replaced_at_the_same_address(tmp_path):
    with kept(tmp_path) as (keeper, address):
        for _ in range(2):
            first = worker(keeper)
            os.kill(first, signal.SIGKILL)
            until(lambda first=first: worker(keeper) not in (0, first))
            assert httpx.get(f"{address}/healthz", timeout=60).json()["status"] == "ok"
        last = worker(keeper)
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(30) == 0
        until(lambda: gone(last))
    lines = (tmp_path / "errors").read_text().splitlines()
    assert [json.loads(line) for line in lines[1:]] == [{"event": "worker ended", "code": -9}] * 2


def test_a_process_that_shares_nothing_serves_too(tmp_path):
    """As on a GPU, whose state no fork may inherit."""
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    with kept(tmp_path, command=[sys.executable, str(script), *SERVE[3:]]) as (keeper, address):
        assert httpx.get(f"{address}/healthz", timeout=60).status_code == 200
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(30) == 0


def test_without_its_keeper_nobody_holds_the_port(tmp_path):
    with kept(tmp_path) as (keeper, address):
        last = worker(keeper)
        keeper.kill()
        until(lambda: gone(last))
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/healthz", timeout=60)


def test_ctrl_c_stops_both(tmp_path):
    with kept(tmp_path) as (keeper, _):
        last = worker(keeper)
        keeper.send_signal(signal.SIGINT)
        assert keeper.wait(30) == 130
        until(lambda: gone(last))
    assert (tmp_path / "errors").read_text().splitlines()[1:] == ["stopped"]


def test_what_the_first_start_finds_wrong_is_one_line(tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no weights")
    done = subprocess.run([*SERVE, "--model", str(broken)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "broken.safetensors" in done.stderr
