"""Copy finished runs of the suite to results/, without their images; docs/ are rendered from these files.

    python tools/keep_run.py runs/cifar10-resnet18-rp runs/cifar10-resnet18-lc-hedge

A run on SOAP or on a bare model goes to results/adaptive with all facts; of a run on another purifier the rows,
findings, command and commits go to results/purifiers. An earlier run of the same name is replaced.
"""

import argparse
import shutil
import sys
from pathlib import Path

from page_purifiers import runs_folder

from soap.errors import FileError, SoapError
from soap.evaluation.run_folder import CONTINUED, FINGERPRINTS, PLAN, ROWS, open_run
from soap.evaluation.suite import FINDINGS
from soap.recipes.purifiers import SOAP_NAME

RESULTS = Path(__file__).resolve().parents[1] / "results"
ADAPTIVE_FILES = (PLAN, ROWS, FINDINGS, FINGERPRINTS, "facts")
PURIFIER_FILES = (ROWS, FINDINGS, "facts/asked.json")
RESUMED_BY = f"facts/{CONTINUED}.json"


def keep(run: Path, results: Path = RESULTS) -> Path:
    """Copy the run; returns its folder under `results`."""
    asked = open_run(run).read_fact("asked")
    purifier = SOAP_NAME if asked is None else asked["purifier"]
    wanted = (
        ADAPTIVE_FILES
        if purifier == SOAP_NAME
        else (*PURIFIER_FILES, RESUMED_BY)
        if (run / RESUMED_BY).exists()
        else PURIFIER_FILES
    )
    for name in (*PURIFIER_FILES, FINGERPRINTS, *wanted):
        if not (run / name).exists():
            raise FileError(
                f"{run} has no {name}; expected a finished run. Run its `soap evaluate` command to the end first."
            )
    kept = runs_folder(results, purifier) / run.name
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
