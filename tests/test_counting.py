"""Long runs store trial counts as rows, which docs/reliability.md shows."""

import json
from pathlib import Path

import counting
import pytest
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
