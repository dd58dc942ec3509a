"""Long runs store trial counts as rows, which docs/reliability.md shows."""

import json
from pathlib import Path

import counting
import pytest
from merge_counts import merged
from page_measurements import reliability_rows, reliability_table

ROOT = Path(__file__).parents[1]


@pytest.fixture
def rows(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    monkeypatch.setattr(counting, "LONG", True)
    monkeypatch.setattr(counting, "ROWS", path)
    return path


def test_long_run_stores_counts_and_measured_numbers(rows):
    counting.count("it holds", 1200, [], {"ms, p99": 12.34567, "kills": 2000})
    with pytest.raises(AssertionError, match=r"it does not: 1 of 3: .*why"):
        counting.count("it does not", 3, ["why"])
    first, second = map(json.loads, rows.read_text().splitlines())
    assert first["measured"] == {"ms, p99": 12.346, "kills": 2000}
    assert (second["trials"], second["failures"], "measured" in second) == (3, 1, False)
    page = reliability_table(reliability_rows(rows))
    assert "| it holds (ms, p99: 12.3, kills: 2,000) | 1,200 | 0 | `tests/test_counting.py::test_long_run" in page
    assert "| it does not | 3 | **1** |" in page


def test_short_run_stores_nothing_and_zero_trials_fail(rows, monkeypatch):
    monkeypatch.setattr(counting, "LONG", False)
    counting.count("it holds", 1, [])
    assert not rows.exists()
    with pytest.raises(AssertionError):
        counting.count("nothing was tried", 0, [])
    assert counting.amount(3, 60) == 3


@pytest.mark.parametrize("trials", [0, 1, 7, 1000])
def test_parts_of_a_long_run_share_its_trials(rows, monkeypatch, trials):
    found = []
    for part in range(3):
        monkeypatch.setattr(counting, "PART", part)
        monkeypatch.setattr(counting, "PARTS", 3)
        assert counting.amount(5, trials) == len(counting.part_of(trials))
        found += counting.part_of(trials)
    assert found == [*range(trials)]


def test_merged_rows_state_the_sums_of_the_parts(rows):
    for trials, failures in ((500, []), (501, ["why"])):
        try:
            counting.count("it holds", trials, failures, {"refused": trials - 1})
        except AssertionError:
            assert failures
    counting.count("another holds", 3, [])
    first, second = merged(map(json.loads, rows.read_text().splitlines()))
    assert (first["trials"], first["failures"], first["measured"]) == (1001, 1, {"refused": 999})
    assert (second["promise"], second["trials"]) == ("another holds", 3)


def test_rows_of_different_commits_are_not_merged():
    row = {"promise": "it holds", "test": "t", "trials": 1, "failures": 0, "date": "2026-01-01", "commit": "a"}
    with pytest.raises(SystemExit, match="have commit a and b"):
        merged([row, {**row, "commit": "b"}])
