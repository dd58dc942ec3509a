"""How much to try, and the rows of what was tried: `make stress` sets SOAP_STRESS=long and keeps the counts.

The rows go to $SOAP_RELIABILITY, else to results/reliability.jsonl. Short runs keep none, and assert no times.
"""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from soap.evaluation.provenance import commit

LONG = os.environ.get("SOAP_STRESS") == "long"
COMMIT = commit()  # as it is when the run begins
ROWS = Path(os.environ.get("SOAP_RELIABILITY", Path(__file__).parents[2] / "results" / "reliability.jsonl"))


def much(short: float, long: float) -> float:
    """How often, or how many seconds, in this run."""
    return long if LONG else short


def tally(promise: str, trials: int, failures: Sequence[str], figures: Mapping[str, float] | None = None) -> None:
    """Keep the count of a long run, with what was measured beside it, then fail if anything did."""
    if LONG:
        row = {
            "promise": promise,
            "test": os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0],
            "trials": trials,
            "failures": len(failures),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": COMMIT,
        }
        if figures:
            row["figures"] = {name: round(value, 3) for name, value in figures.items()}
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        with ROWS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    assert not failures, f"{promise}: {len(failures)} of {trials}: {failures[:3]}"
    assert trials > 0, promise
