"""docs/export.md: tables from results/export.jsonl and results/attempts/export-agreement.jsonl."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soap.bench import read
from soap.onnx_export import MIN_AGREEMENT, PARTS
from soap.onnx_export.onnx_files import MANIFEST_SCHEMA
from soap.report import markdown_table

HEAD = ("model", "images", "part", "agree", "equal pixels", "torch, s", "onnxruntime, s", "torch / onnxruntime")

ExportJson = dict[str, Any]
"""A row of `soap export --check` as JSON."""


def committed_rows(path: Path) -> list[ExportJson]:
    """Rows of `soap export --check`; of several for one model and purifier, the latest."""
    return list({(row["model"], row["purifier"]): row for row in read(path, MANIFEST_SCHEMA)}.values())


def table(rows: Sequence[ExportJson]) -> str:
    """One line a model and part, then device, date and command of each row."""
    lines = []
    for row in rows:
        for name, part in row["parts"].items():
            pixels = "" if part["pixels"] is None else f"{100 * part['pixels']:.3f} %"
            seconds = (f"{part['seconds_torch']:.2f}", f"{part['seconds_onnx']:.2f}", f"**{part['ratio']:.2f}**")
            images = f"{row['images']:,} of {row['data']}"
            lines.append((_model_text(row), images, name, _agree(part), pixels, *seconds))
    parts = [markdown_table(HEAD, lines), _verdict(rows), "\n".join(map(_source, rows))]
    return "\n\n".join(parts)


def agreement_table(path: Path) -> str:
    """Agreement with torch of other ways to purify: a line per way, a column per model; the latest of several rows."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    models = sorted({row["model"] for row in rows})
    found = {(row["way"], row["model"]): f"{100 * row['labels']:.1f} %" for row in rows}
    head, lines = ("the same images purified by", *(f"`{model}`" for model in models)), []
    for way in dict.fromkeys(row["way"] for row in rows):
        lines.append((way, *(found.get((way, model), "") for model in models)))
    return markdown_table(head, lines)


def _agree(part: ExportJson) -> str:
    """The share of equal labels, marked if it is too low."""
    return f"{100 * part['agree']:.1f} %" + ("" if part["agree"] >= MIN_AGREEMENT else " **too few**")


def _verdict(rows: Sequence[ExportJson]) -> str:
    """Parts below the required share, with the shares in double precision, and parts that were not measured."""
    low = [
        f"{name} of {_model_text(row)}{_in_double(part)}"
        for row in rows
        for name, part in row["parts"].items()
        if part["agree"] < MIN_AGREEMENT
    ]
    purified = [row for row in rows if row["purifier"]]
    absent = [f"{name} of {_model_text(row)}" for row in purified for name in PARTS if name not in row["parts"]]
    reached = f"Below the wanted {100 * MIN_AGREEMENT:.1f} %: {'; '.join(low) or 'none'}."
    return reached + (f" Not measured: {'; '.join(absent)}." if absent else "")


def _in_double(part: ExportJson) -> str:
    """Agreement of torch in double precision with torch in single precision and with the file."""
    if part.get("double_torch") is None:
        return ""
    one, two = (f"{100 * part[key]:.1f} %" for key in ("double_torch", "double_onnx"))
    return f" (torch in double precision agrees with torch on {one}, with the file on {two})"


def _model_text(row: ExportJson) -> str:
    """The model, and the gradient if its task has a choice."""
    _, found, gradient = (row["purifier"] or "").partition("gradient='")
    return f"`{row['model']}`" + (f", gradient {gradient.partition(chr(39))[0]}" if found else "")


def _source(row: ExportJson) -> str:
    place = row["provenance"]
    where = f"{place['processor']}, {place['threads']} thread" + ("s" if place["threads"] != 1 else "")
    versions = f"torch {place['torch']}, onnxruntime {place['onnxruntime']}"
    commit = (place["commit"] or "unknown")[:12]
    return f"- `{place['command']}`: commit {commit}, {place['date'][:10]}, {where}, {versions}, {row['attack']}"
