"""A kill at any moment loses at most the steps since the last save, and the result is bitwise the same."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from counting import PART, amount, count_all

HERE = Path(__file__).parent

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")]

KILLS = {
    "training": (1, 1000),
    "label-free training": (1, 100),
    "transfer evaluation": (1, 200),
    "adaptive suite": (1, 200),
}


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder in memory if available: for a kill, unlike a power cut, syncing to disk does not matter."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield folder


def run_script(script: str, *arguments: str) -> dict:
    """Run a script of this folder in a new process; return the JSON that it prints."""
    # Rows contain the commit, which may change during a long run.
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOAP_COMMIT": "a test"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_runs_killed_at_random_times_end_with_the_same_result(memory):
    kills = {name: amount(*numbers) for name, numbers in KILLS.items()}
    wanted = (f"{name}={number}" for name, number in kills.items())
    found = run_script("random_kills.py", memory, *wanted, "--seed", str(PART))
    count_all({f"{name}: SIGKILL at a random time, then bitwise the same result": one for name, one in found.items()})
    assert {name: result["trials"] for name, result in found.items()} == kills


def test_runs_killed_at_every_point_of_the_save_path_resume_from_the_last_save(memory):
    found = run_script("save_path_kills.py", memory, "--times", str(amount(1, 50)), "--seed", str(PART))
    promise = "killed in the save path ({}): all files intact, the same result"
    count_all({promise.format(point): result for point, result in found.items()})
    assert len(found) == 22


def test_exports_and_downloads_killed_at_every_point_leave_complete_files(memory):
    for package in ("onnxruntime", "huggingface_hub"):
        pytest.importorskip(package, reason="needs the extras onnx and hub")
    arguments = ("--times", str(amount(1, 50)), "--seed", str(PART), "--runs", "export", "hub download")
    found = run_script("save_path_kills.py", memory, *arguments)
    promise = "killed in the save path ({}): all files complete, the same after another attempt"
    count_all({promise.format(point): result for point, result in found.items()})
    assert len(found) == 8
