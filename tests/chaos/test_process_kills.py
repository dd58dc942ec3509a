"""Two processes that train together lose no more by a kill than one, and neither continues alone."""

import sys

import pytest
from counting import PART, amount, count_all
from test_kills import memory, run_script

__all__ = ["memory"]  # a fixture

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")]

KILLS = {"training both": (1, 50), "training one": (1, 50), "shards both": (1, 25), "shards one": (1, 25)}
PROMISES = {
    "training both": "training on 2 processes: SIGKILL of both at a random time, then bitwise the same result",
    "training one": "training on 2 processes: SIGKILL of one at a random time, the other ends, then bitwise the same "
    "result",
    "shards both": "suite run of 2 shards: SIGKILL of both at a random time, then the run of one process",
    "shards one": "suite run of 2 shards: SIGKILL of one at a random time, then the run of one process",
}


def test_two_processes_killed_at_random_times_end_with_the_same_result(memory):
    kills = {name: amount(*numbers) for name, numbers in KILLS.items()}
    wanted = (f"{name}={number}" for name, number in kills.items())
    found = run_script("random_process_kills.py", memory, *wanted, "--seed", str(PART))
    count_all({PROMISES[name]: one for name, one in found.items()})
    assert {name: result["trials"] for name, result in found.items()} == kills
