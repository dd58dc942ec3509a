"""Keep what the pages are rendered from of finished runs of the suite, without their images.

    python tools/keep_run.py runs/cifar10-resnet18-rp runs/cifar10-resnet18-lc-hedge

A run on SOAP or on a bare model goes whole, with its report, to results/adaptive; of one on another purifier the rows,
findings, command and commits go to results/purifiers. What an earlier run of that name left there is replaced.
"""

import argparse
import shutil
import sys
from pathlib import Path

from render_purifiers import RESULTS, room_of

from soap.errors import FileError, SoapError
from soap.evaluation.run_folder import CONTINUED, FINGERPRINTS, PLAN, ROWS, open_run
from soap.evaluation.suite import FINDINGS
from soap.recipes.purifiers import SOAP_NAME

WHOLE = (PLAN, ROWS, FINDINGS, FINGERPRINTS, "facts", "report.html")
PART = (ROWS, FINDINGS, "facts/asked.json")
WENT_ON = f"facts/{CONTINUED}.json"


def keep(run: Path, results: Path = RESULTS) -> Path:
    """The folder under `results` that the run now lies in, by its own name."""
    asked = open_run(run).read_fact("asked")
    purifier = SOAP_NAME if asked is None else asked["purifier"]
    wanted = WHOLE if purifier == SOAP_NAME else (*PART, WENT_ON) if (run / WENT_ON).exists() else PART
    for name in (*PART, FINGERPRINTS, *wanted):
        if not (run / name).exists():
            raise FileError(
                f"{run} has no {name}, so it is not kept; let its `soap evaluate` run to the end, "
                "then make its page by `soap report`."
            )
    kept = room_of(results, purifier) / run.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name in wanted:
        copy = shutil.copytree if (run / name).is_dir() else shutil.copyfile
        copy(run / name, kept / Path(name).name)
    return kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="Folder of a finished run.")
    try:
        for path in parser.parse_args().runs:
            print(keep(path.resolve()))
    except SoapError as error:
        sys.exit(str(error))
