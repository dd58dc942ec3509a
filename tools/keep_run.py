"""Keep what the pages are rendered from of finished runs of the suite, without their images.

    python tools/keep_run.py runs/cifar10-resnet18-rp runs/cifar10-resnet18-lc-hedge

A run on SOAP or on a bare model goes whole, with its report, to results/adaptive; of one on another purifier the rows,
findings and command go to results/purifiers. What an earlier run of that name left there is replaced.
"""

import json
import shutil
import sys
from pathlib import Path

from soap.evaluation.adaptive.opened import opened
from soap.recipes.purifiers import SOAP

RESULTS = Path(__file__).resolve().parents[1] / "results"
REPORT = "report.html"
WHOLE = ("run.json", "rows.jsonl", "findings.json", "seal.json", "facts", REPORT)
PART = ("rows.jsonl", "findings.json", "facts/asked.json")


def keep(run: Path, results: Path = RESULTS) -> Path:
    """The folder under `results` that the run now lies in, by its own name."""
    opened(run)
    for name in (*WHOLE[:-1], *PART):
        if not (run / name).exists():
            raise SystemExit(f"{run} has no {name}: its suite did not end; repeat the run's command, which goes on.")
    own = json.loads((run / PART[-1]).read_text(encoding="utf-8"))["purifier"] == SOAP
    if own and not (run / REPORT).is_file():
        raise SystemExit(f"{run} has no {REPORT}: make it with `soap report {run}`.")
    kept = results / ("adaptive" if own else "purifiers") / run.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name in WHOLE if own else PART:
        copy = shutil.copytree if (run / name).is_dir() else shutil.copyfile
        copy(run / name, kept / Path(name).name)
    return kept


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        print(keep(Path(path).resolve()))
