"""Every file that tools/render_pages.py writes agrees with the committed rows."""

import json

import page_measurements as tables
import pytest
import render_pages

ROW = {"promise": "a | b", "test": "tests/chaos/test_kills.py::test_x[y]", "trials": 1200, "failures": 0,
       "date": "2026-01-01", "commit": "c0ffee1234+"}  # fmt: skip


@pytest.mark.parametrize("path", render_pages.PAGES, ids=lambda path: path.name)
def test_page_agrees_with_the_committed_rows(path):
    assert render_pages.rendered(path) == path.read_text(encoding="utf-8"), f"{path.name} is out of date: make render"


def test_check_names_pages_that_are_out_of_date_and_writes_nothing(tmp_path, monkeypatch, capsys):
    page = tmp_path / "README.md"
    page.write_text("old")
    monkeypatch.setattr(render_pages, "ROOT", tmp_path)
    monkeypatch.setattr(render_pages, "PAGES", {page: lambda document: "new"})
    assert render_pages.main(check=True) == 1
    assert page.read_text() == "old"
    assert render_pages.main(check=False) == 0
    assert page.read_text() == "new"
    assert capsys.readouterr().out.split() == ["README.md", "README.md"]


def test_reliability_has_one_line_per_promise_and_failures_are_bold():
    text = tables.reliability_table([ROW, {**ROW, "promise": "c", "failures": 3, "commit": None}])
    assert "| a \\| b | 1,200 | 0 | `tests/chaos/test_kills.py::test_x` | 2026-01-01 | c0ffee1+ |" in text
    assert "| c | 1,200 | **3** |" in text
    assert "2,400 trials, 3 failures." in text
    assert tables.reliability_table([]) == "No long run has been recorded yet."


def test_latest_row_of_a_promise_is_rendered_and_invalid_rows_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**ROW, "trials": n}) + "\n" for n in (1, 2)))
    assert [row["trials"] for row in tables.reliability_rows(path)] == [2]
    path.write_text(json.dumps({**ROW, "failures": 2000}) + "\n")
    with pytest.raises(SystemExit, match="line 1: not a row"):
        tables.reliability_rows(path)
