"""Render the table of docs/service.md from the rows of tools/load_service.py in results/service.jsonl.

python tools/render_service.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soap.report import markdown_table, with_section

ROOT = Path(__file__).resolve().parents[1]
PAGE, ROWS = ROOT / "docs" / "service.md", ROOT / "results" / "service.jsonl"
NONE = "*No rows yet: run `python tools/load_service.py` and `python tools/render_service.py`.*"
HEAD = (
    "model", "operation", "clients", "seconds", "batches", "requests", "errors", "requests/s", "p50, ms", "p99, ms",
    "against one at a time",
)  # fmt: skip
WAYS = {"batched": "up to {batch}", "single": "one at a time"}

Row = dict[str, Any]


def committed_rows(path: Path = ROWS) -> list[Row]:
    """All rows, or none without a file; of rows with equal settings and processor, the latest."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines]
    keys = ("model", "operation", "clients", "batch")
    return list({(*(row[key] for key in keys), row["provenance"]["processor"]): row for row in rows}.values())


def table(rows: Sequence[Row]) -> str:
    """Two lines for each row, with and without batching, and a list of the commands."""
    if not rows:
        return NONE
    lines = []
    for row in rows:
        for way, words in WAYS.items():
            found = row["ways"][way]
            lines.append(
                [
                    f"`{row['model']}`",
                    row["operation"],
                    str(row["clients"]),
                    f"{row['seconds']:g}",
                    words.format(batch=row["batch"]),
                    f"{found['requests']:,}",
                    str(found["errors"]),
                    f"{found['requests_per_second']:,.0f}",
                    f"{found['p50_ms']:,.0f}",
                    f"{found['p99_ms']:,.0f}",
                    f"**{row['ratio']:.1f} x**" if way == "batched" else "1",
                ]
            )
    return "\n\n".join([markdown_table(HEAD, lines), "\n".join(dict.fromkeys(map(_command, rows)))])


def rendered(document: str, rows: Sequence[Row]) -> str:
    """The page with the table of the rows."""
    return with_section(document, "figures", table(rows))


def _command(row: Row) -> str:
    p = row["provenance"]
    return (
        f"- `{p['command']}`: {p['processor']}, {p['threads']} threads, commit {(p['commit'] or 'unknown')[:12]}, "
        f"{p['date'][:10]}, torch {p['torch']}, Python {p['python']}"
    )


if __name__ == "__main__":
    found = committed_rows()
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(f"{len(found)} rows in {PAGE}")
