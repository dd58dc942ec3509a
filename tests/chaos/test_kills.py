"""A kill at any moment loses at most the steps since the last save, and the end is the same to the bit."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from counting import amount, count_all

HERE = Path(__file__).parent

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")]

KILLS = {
    "training": (6, 200),
    "label-free training": (2, 50),
    "transfer evaluation": (3, 100),
    "adaptive suite": (2, 100),
}


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder in memory where there is one: a kill, unlike a power cut, does not care what is synced."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield folder


def told(script: str, *arguments: str) -> dict:
    """What a script of this folder prints, run in a process of its own."""
    # Rows name the source's commit, which may move on while a long run goes on.
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOAP_COMMIT": "a rehearsal"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_killed_at_random_times_it_ends_as_if_it_had_not_been(memory):
    kills = {name: amount(*numbers) for name, numbers in KILLS.items()}
    found = told("killing.py", memory, *(f"{name}={number}" for name, number in kills.items()))
    count_all({f"{name}: SIGKILL at a random time, then the same end to the bit": one for name, one in found.items()})
    assert {name: result["trials"] for name, result in found.items()} == kills


def test_killed_at_every_point_of_the_save_path_it_finds_its_last_save(memory):
    found = told("failpoints.py", memory, "--times", str(amount(1, 20)))
    promise = "killed in the save path ({}): all files whole, the same end"
    count_all({promise.format(point): result for point, result in found.items()})
    assert len(found) == 14
