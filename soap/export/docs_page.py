"""Render the tables of docs/export.md from the rows of `soap export --check` and of tools/vary_export.py.

python tools/render_export.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soap.export import ENOUGH, PARTS
from soap.export.opening import SCHEMA
from soap.report import markdown_table, with_section

ROOT = Path(__file__).resolve().parents[1]
PAGE, ROWS = ROOT / "docs" / "export.md", ROOT / "results" / "export.jsonl"
WAYS = ROOT / "results" / "attempts" / "export-agreement.jsonl"
HEAD = ("model", "images", "part", "agree", "equal pixels", "torch, s", "onnxruntime, s", "torch / onnxruntime")

Row = dict[str, Any]


def committed_rows(path: Path = ROWS) -> list[Row]:
    """All rows; of two of one model and purifier, the later."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows, 1):
        if row.get("schema") != SCHEMA:
            raise SystemExit(f"{path}, line {number}: not a row of schema {SCHEMA}.")
    return list({(row["model"], row["purifier"]): row for row in rows}.values())


def table(rows: Sequence[Row]) -> str:
    """A line a model and part, then where, when and by which command they were measured."""
    lines = []
    for row in rows:
        for name, part in row["parts"].items():
            pixels = "" if part["pixels"] is None else f"{100 * part['pixels']:.3f} %"
            seconds = (f"{part['seconds_torch']:.2f}", f"{part['seconds_onnx']:.2f}", f"**{part['ratio']:.2f}**")
            images = f"{row['images']:,} of {row['data']}"
            lines.append((_called(row), images, name, _agree(part), pixels, *seconds))
    parts = [markdown_table(HEAD, lines), _verdict(rows), "\n".join(map(_source, rows))]
    return "\n\n".join(parts)


def rendered(document: str, rows: Sequence[Row]) -> str:
    """The page with its figures as the rows have them."""
    return with_section(with_section(document, "figures", table(rows)), "ways", ways())


def ways(path: Path = WAYS) -> str:
    """What `tools/vary_export.py` counted: a line a way, a column a model, the later of two rows."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    models = sorted({row["model"] for row in rows})
    found = {(row["way"], row["model"]): f"{100 * row['labels']:.1f} %" for row in rows}
    head, lines = ("the same images purified by", *(f"`{model}`" for model in models)), []
    for way in dict.fromkeys(row["way"] for row in rows):
        lines.append((way, *(found.get((way, model), "") for model in models)))
    return markdown_table(head, lines)


def _agree(part: Row) -> str:
    """The share of images, marked where it is too low."""
    return f"{100 * part['agree']:.1f} %" + ("" if part["agree"] >= ENOUGH else " **too few**")


def _verdict(rows: Sequence[Row]) -> str:
    """What did not reach the wanted share, with the shares of double precision, and what was not measured."""
    low = [
        f"{name} of {_called(row)}{_in_double(part)}"
        for row in rows
        for name, part in row["parts"].items()
        if part["agree"] < ENOUGH
    ]
    purified = [row for row in rows if row["purifier"]]
    absent = [f"{name} of {_called(row)}" for row in purified for name in PARTS if name not in row["parts"]]
    reached = f"Below the wanted {100 * ENOUGH:.1f} %: {'; '.join(low) or 'none'}."
    return reached + (f" Not measured: {'; '.join(absent)}." if absent else "")


def _in_double(part: Row) -> str:
    """How far torch agrees with itself in double precision, and the file with that."""
    if part.get("double_torch") is None:
        return ""
    one, two = (f"{100 * part[key]:.1f} %" for key in ("double_torch", "double_onnx"))
    return f" (torch in double precision agrees with torch on {one}, with the file on {two})"


def _called(row: Row) -> str:
    """The model, and the gradient where its task has a choice."""
    _, found, gradient = (row["purifier"] or "").partition("gradient='")
    return f"`{row['model']}`" + (f", gradient {gradient.partition(chr(39))[0]}" if found else "")


def _source(row: Row) -> str:
    place = row["provenance"]
    where = f"{place['processor']}, {place['threads']} thread" + ("s" if place["threads"] != 1 else "")
    versions = f"torch {place['torch']}, onnxruntime {place['onnxruntime']}"
    commit = (place["commit"] or "unknown")[:12]
    return f"- `{place['command']}`: commit {commit}, {place['date'][:10]}, {where}, {versions}, {row['attack']}"


if __name__ == "__main__":
    rows = committed_rows()
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    print(f"{len(rows)} rows in {PAGE}")
