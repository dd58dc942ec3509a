"""docs/export.md is what the committed rows say, and its commands are understood."""

import json
import shlex
from pathlib import Path

import export_page as tool
import pytest

from soap.errors import FileError

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "results" / "export.jsonl"


def test_a_share_that_is_too_low_is_marked_and_named():
    row = tool.committed_rows(ROWS)[0]
    assert set(row["parts"]) == {"classifier", "loss", "step", "whole"}
    low = json.loads(json.dumps(row))
    low["parts"]["step"]["agree"] = 0.998
    del low["parts"]["whole"]
    assert "too few" not in tool.table([row])
    assert "Below the wanted 99.9 %: none." in tool.table([row])
    assert "| 99.8 % **too few** |" in tool.table([low])
    assert f"Below the wanted 99.9 %: step of `{row['model']}`. Not measured: whole of" in tool.table([low])
    low["parts"]["step"] |= {"double_torch": 0.997, "double_onnx": 0.996}
    shares = "(torch in double precision agrees with torch on 99.7 %, with the file on 99.6 %)"
    assert f"step of `{row['model']}` {shares}. Not measured" in tool.table([low])


def test_a_row_of_another_kind_is_refused(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"schema": "soap-bench/2"}) + "\n")
    with pytest.raises(FileError, match=r"line 1.*schema soap-export/1"):
        tool.committed_rows(tmp_path / "rows.jsonl")


def test_of_two_rows_of_one_model_the_later_counts(tmp_path):
    first = tool.committed_rows(ROWS)[0]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({**first, "images": n}) for n in (1, 2)))
    assert [row["images"] for row in tool.committed_rows(tmp_path / "rows.jsonl")] == [2]


def test_the_commands_of_the_page_are_understood():
    from soap.cli import load_command

    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("soap export ")]
    command = load_command("export")
    assert lines
    for line in lines:
        command.make_context("export", shlex.split(line)[2:])
