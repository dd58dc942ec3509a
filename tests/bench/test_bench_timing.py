"""Timings: mean, quartiles and deviation, and alternating runs."""

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from soap.bench.measures import interleaved, seconds_of, spread

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)
CPU = torch.device("cpu")


@given(TIMES)
def test_a_spread_is_ordered_and_complete(values):
    got = spread(values)
    assert got["fastest"] == min(values)
    assert got["median"] == pytest.approx(np.median(values))
    assert got["fastest"] <= got["lower_quartile"] <= got["median"] <= got["upper_quartile"] <= max(values)
    assert got["repeats"] == len(values)


@given(TIMES)
def test_mean_and_deviation_equal_those_of_numpy(values):
    got = spread(values)
    assert got["mean"] == pytest.approx(statistics.mean(values)) == pytest.approx(np.mean(values))
    if len(values) > 1:
        assert got["deviation"] == pytest.approx(statistics.stdev(values))
        assert got["deviation"] == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    else:
        assert got["deviation"] == 0


def test_mean_and_deviation_by_hand():
    got = spread([5.0, 1.0, 3.0])
    assert (got["mean"], got["deviation"]) == (3, 2)


def test_paths_run_alternately():
    said = []
    runs = {"ours": lambda: said.append("A"), "plain": lambda: said.append("B")}
    seen = []
    got = interleaved(runs, repeats=3, device=CPU, watch=lambda *progress: seen.append(progress))
    assert said == ["A", "B"] * 3
    assert seen == [("timing", 1, 3), ("timing", 2, 3), ("timing", 3, 3)]
    assert {name: len(times) for name, times in got.items()} == {"ours": 3, "plain": 3}


def test_seconds_equal_those_of_the_clock(monkeypatch):
    ticks = iter([10.0, 12.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert seconds_of(lambda: None, CPU) == 2.5
