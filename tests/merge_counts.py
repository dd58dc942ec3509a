"""Sum the rows of the parts of one long run:

SOAP_LONG=1 SOAP_PART=0/2 SOAP_RELIABILITY=0.jsonl make chaos   # and 1/2, elsewhere or at the same time
python tests/merge_counts.py 0.jsonl 1.jsonl >> results/reliability.jsonl
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SUMMED = ("trials", "failures")


def merged(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each promise: trials, failures and measured counts summed, the last date."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        first = found.setdefault(row["promise"], row)
        if first is row:
            continue
        for name in ("test", "commit"):
            if first[name] != row[name]:
                raise SystemExit(f"{row['promise']}: the parts have {name} {first[name]} and {row[name]}.")
        sums = {name: first[name] + row[name] for name in SUMMED}
        found[row["promise"]] = {**first, **sums, "date": max(first["date"], row["date"])}
        if measured := first.get("measured"):
            found[row["promise"]]["measured"] = {
                name: value + row["measured"][name] for name, value in measured.items()
            }
    return list(found.values())


if __name__ == "__main__":
    lines = (line for path in sys.argv[1:] for line in Path(path).read_text(encoding="utf-8").splitlines())
    for each in merged(map(json.loads, lines)):
        print(json.dumps(each))
