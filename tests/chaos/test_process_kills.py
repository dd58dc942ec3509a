"""Two processes that train together lose as little by a kill as one does, and none goes on alone."""

import sys

import pytest
from counting import amount, count_all
from test_kills import memory, told

__all__ = ["memory"]  # a fixture

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")]

KILLS = {"both": (3, 50), "one": (3, 50)}
PROMISES = {
    "both": "training on 2 processes: SIGKILL of both at a random time, then the same end to the bit",
    "one": "training on 2 processes: SIGKILL of one at a random time, the other ends, then the same end to the bit",
}


def test_two_processes_killed_at_random_times_end_as_if_they_had_not_been(memory):
    kills = {name: amount(*numbers) for name, numbers in KILLS.items()}
    found = told("rank_killing.py", memory, *(f"{name}={number}" for name, number in kills.items()))
    count_all({PROMISES[name]: one for name, one in found.items()})
    assert {name: result["trials"] for name, result in found.items()} == kills
