"""How often to try, and the rows of what was tried: `make chaos` sets SOAP_CHAOS=long and keeps the counts.

The rows go to $SOAP_RELIABILITY, else to results/reliability.jsonl.
"""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from soap.evaluation.provenance import commit

LONG = os.environ.get("SOAP_CHAOS") == "long"
COMMIT = commit()  # as it is when the run begins
ROWS = Path(os.environ.get("SOAP_RELIABILITY", Path(__file__).parents[2] / "results" / "reliability.jsonl"))


def times(short: int, long: int) -> int:
    """How often to try in this run."""
    return long if LONG else short


def count(promise: str, trials: int, failures: Sequence[str]) -> None:
    """Keep the count of a long run, then fail if anything did."""
    count_all({promise: {"trials": trials, "failures": failures}})


def count_all(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep the counts of several promises, {"trials": number, "failures": texts} each, then fail if anything did."""
    if LONG:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        with ROWS.open("a", encoding="utf-8") as file:
            for promise, result in found.items():
                numbers = {"trials": result["trials"], "failures": len(result["failures"])}
                row = {"promise": promise, "test": test, **numbers, "date": date, "commit": COMMIT}
                file.write(json.dumps(row) + "\n")
    for promise, result in found.items():
        failures, trials = result["failures"], result["trials"]
        assert not failures, f"{promise}: {len(failures)} of {trials}: {failures[0]}"
        assert trials > 0, promise
