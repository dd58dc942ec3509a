"""Render the table of docs/reliability.md from the rows of the long runs in results/reliability.jsonl.

python tools/render_reliability.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soap.report import with_section

ROOT = Path(__file__).resolve().parents[1]
PAGE, ROWS = ROOT / "docs" / "reliability.md", ROOT / "results" / "reliability.jsonl"
HEAD = ("promise", "trials", "failures", "test", "date", "source")
FIELDS = {"promise", "test", "trials", "failures", "date", "commit"}

Row = dict[str, Any]


def committed_rows(path: Path = ROWS) -> list[Row]:
    """All rows; of rows with the same promise, the latest."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    for number, row in enumerate(rows, 1):
        if set(row) - {"figures"} != FIELDS or not 0 <= row["failures"] <= row["trials"]:
            raise SystemExit(f"{path}, line {number}: not a row of `make chaos`, `make fuzz` or `make stress`.")
    return list({row["promise"]: row for row in rows}.values())


def table(rows: Sequence[Row]) -> str:
    """One line for each promise, and the sums."""
    if not rows:
        return "No long run has been recorded yet."
    lines = [HEAD, ("---", "---:", "---:", "---", "---", "---")]
    for row in rows:
        failures = f"**{row['failures']:,}**" if row["failures"] else "0"
        test = f"`{row['test'].partition('[')[0]}`"
        source = (row["commit"] or "unknown")[:7] + ("+" if (row["commit"] or "").endswith("+") else "")
        lines.append((_promise(row), f"{row['trials']:,}", failures, test, row["date"], source))
    trials, failures = (sum(row[name] for row in rows) for name in ("trials", "failures"))
    summary = f"{trials:,} trials, {failures:,} failures."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{summary}"


def _promise(row: Row) -> str:
    """The promise, and the numbers measured with it (`figures`, whose names contain the units)."""
    figures = row.get("figures", {}).items()
    measured = ", ".join(f"{name}: {value:,.0f}" if value >= 100 else f"{name}: {value:.3g}" for name, value in figures)
    return (row["promise"] + (f" ({measured})" if measured else "")).replace("|", "\\|")


def rendered(document: str, rows: Sequence[Row]) -> str:
    """The page with the table of the rows."""
    return with_section(document, "figures", table(rows))


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), committed_rows()), encoding="utf-8")
