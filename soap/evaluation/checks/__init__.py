"""The 19 checks of a suite run; docs/checks/ has a page for each.

Measurements are made on the model once the attempts are done and are stored as facts. Checks judge the files alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

from soap.evaluation.checks import (
    attacker_knowledge,
    bare_classifier,
    best_iterate,
    converged,
    deterministic,
    gradient_correct,
    gradient_present,
    legal_perturbations,
    logits,
    optimisation,
    planted_weakness,
    provenance_complete,
    radii,
    repeatable,
    sample_size,
    single_step,
    unbounded,
)
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

MODULES = (
    legal_perturbations, logits, deterministic, optimisation, gradient_present, gradient_correct, best_iterate,
    converged, unbounded, radii, single_step, attacker_knowledge, bare_classifier, planted_weakness, sample_size,
    repeatable, provenance_complete,
)  # fmt: skip

CHECKS: dict[int, Check] = {check.number: check for module in MODULES for check in module.CHECKS}
"""All checks by number, in ascending order."""

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
