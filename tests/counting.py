"""Trial counts of the chaos, fuzz and stress tests: short in `make test`, long with SOAP_LONG=1.

`make chaos`, `make fuzz` and `make stress` set SOAP_LONG=1. A long run appends its counts as rows to $SOAP_RELIABILITY,
by default results/reliability.jsonl. A short run stores nothing. SOAP_PART=2/3 makes the last of three parts of a long
run, with its share of the trials and other random numbers; `python tests/merge_counts.py` sums the rows of the parts.
"""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from soap.evaluation.provenance import commit

LONG = os.environ.get("SOAP_LONG") == "1"
PART, PARTS = map(int, os.environ.get("SOAP_PART", "0/1").split("/"))
"""The part of a long run, counted from 0, and their number."""

COMMIT = commit()  # read once: it may change during a long run
ROWS = Path(os.environ.get("SOAP_RELIABILITY", Path(__file__).parents[1] / "results" / "reliability.jsonl"))

Amount = TypeVar("Amount", int, float)


def amount(short: Amount, long: Amount) -> Amount:
    """Return the number of trials or seconds for this run: the share of `long` with SOAP_LONG=1, otherwise `short`."""
    if not LONG:
        return short
    return len(part_of(long)) if isinstance(long, int) else long / PARTS


def part_of(trials: int) -> range:
    """Return the numbers of the trials that belong to this part of a long run."""
    return range(trials * PART // PARTS, trials * (PART + 1) // PARTS)


def count(promise: str, trials: int, failures: Sequence[str], measured: Mapping[str, float] | None = None) -> None:
    """Store the count of a long run, with measured numbers by name, then fail if a trial failed."""
    count_all({promise: {"trials": trials, "failures": failures, "measured": measured}})


def count_all(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Store the counts of several promises, each with the arguments of `count`, then fail if a trial failed."""
    if LONG:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        with ROWS.open("a", encoding="utf-8") as file:
            for promise, result in found.items():
                numbers = {"trials": result["trials"], "failures": len(result["failures"])}
                row: dict[str, Any] = {"promise": promise, "test": test, **numbers, "date": date, "commit": COMMIT}
                if measured := result.get("measured"):
                    row["measured"] = {name: round(value, 3) for name, value in measured.items()}
                file.write(json.dumps(row) + "\n")
    for promise, result in found.items():
        failures, trials = result["failures"], result["trials"]
        assert not failures, f"{promise}: {len(failures)} of {trials}: {failures[:3]}"
        assert trials > 0, promise
