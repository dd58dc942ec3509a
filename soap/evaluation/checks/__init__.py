"""The 22 checks of a suite run; docs/checks/ has a page for each.

Measurements are made on the model once the attempts are done and are stored as facts. Checks judge the files alone.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

from soap.evaluation.checks.check import FAIL, NOT_RUN, PASS, STATES, WARN, Check, Evidence, Finding, Measurement
from soap.evaluation.checks.context import MAX_IMAGES, measurement_context
from soap.evaluation.plan import PlannedRun
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.summary import Summary
from soap.evaluation.transfer import Watch

__all__ = [
    "CHECKS", "FAIL", "MEASUREMENTS", "NOT_RUN", "PASS", "STATES", "WARN", "Check", "Evidence", "Finding",
    "Measurement", "judge_checks", "measurements_of", "run_measurements",
]  # fmt: skip

_MODULES = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
_CHECKS: list[Check] = [check for module in _MODULES for check in getattr(module, "CHECKS", ())]
CHECKS = {check.number: check for check in sorted(_CHECKS, key=lambda check: check.number)}
"""All checks by number: those of every module of this package, in ascending order."""

MEASUREMENTS: tuple[Measurement[Any], ...] = tuple(one for check in CHECKS.values() for one in check.measurements)
"""All measurements, in the order in which they are made."""


def measurements_of(suite: str) -> tuple[Measurement[Any], ...]:
    """The measurements of a suite: all, except for `quick`, which makes the cheap ones."""
    return tuple(one for one in MEASUREMENTS if one.quick or suite != "quick")


def run_measurements(
    run: PlannedRun,
    folder: RunFolder,
    summary: Summary,
    *,
    max_images: int = MAX_IMAGES,
    measurements: Sequence[Measurement[Any]] | None = None,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Make the suite's measurements on a run whose attempts are done; False after a stop, and the same call resumes.

    Stored facts are not measured again, except those that an error prevented. max_images: for each measurement.
    measurements: instead of the suite's.
    """
    wanted = measurements_of(run.suite) if measurements is None else measurements
    context = measurement_context(run, summary, max_images=max_images)
    for number, one in enumerate(wanted, 1):
        if stop():
            return False
        known = folder.read_fact(one.fact)
        if known is None or not known.get("impossible", True):
            folder.write_fact(one.fact, one.fact_content(context))
        watch(f"measuring {one.fact}", number, len(wanted))
    return True


def judge_checks(folder: RunFolder, summary: Summary) -> list[Finding]:
    """The findings of all checks on a run, by number."""
    evidence = Evidence(folder=folder, summary=summary)
    return [check.finding(evidence) for check in CHECKS.values()]
