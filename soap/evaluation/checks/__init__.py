"""The 19 checks of a suite run; docs/checks/ has a page for each.

Measurements are made on the model once the attempts are done and are stored as facts. Checks judge the files alone.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from soap import validate
from soap.data import Dataset
from soap.errors import InputError
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
from soap.evaluation.checks.context import measurement_context
from soap.evaluation.plan import PlannedRun, protocols
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.summary import Summary
from soap.evaluation.transfer import Watch

__all__ = [
    "CHECKS",
    "FAIL",
    "MEASUREMENTS",
    "NOT_RUN",
    "PASS",
    "STATES",
    "WARN",
    "Check",
    "Evidence",
    "Finding",
    "Measurement",
    "judge_checks",
    "measurements_of",
    "run_measurements",
]

CHECKS: dict[int, Check] = {
    check.number: check
    for check in (
        legal_perturbations.CHECK,
        logits.CHECK,
        deterministic.CHECK,
        optimisation.CHECK,
        gradient_present.CHECK,
        gradient_correct.CHECK,
        best_iterate.CHECK,
        *converged.CHECKS,
        unbounded.CHECK,
        radii.CHECK,
        single_step.CHECK,
        *attacker_knowledge.CHECKS,
        bare_classifier.CHECK,
        planted_weakness.CHECK,
        sample_size.CHECK,
        repeatable.CHECK,
        provenance_complete.CHECK,
    )
}
"""All checks by number."""

MEASUREMENTS: tuple[Measurement[Any], ...] = (
    logits.MEASUREMENT,
    deterministic.MEASUREMENT,
    optimisation.MEASUREMENT,
    gradient_present.MEASUREMENT,
    gradient_correct.MEASUREMENT,
    best_iterate.MEASUREMENT,
    best_iterate.LOSS_CURVE,
    converged.STEPS,
    converged.RESTARTS,
    unbounded.MEASUREMENT,
    radii.MEASUREMENT,
    single_step.MEASUREMENT,
    bare_classifier.MEASUREMENT,
    planted_weakness.MEASUREMENT,
    repeatable.MEASUREMENT,
)
"""All measurements, in the order in which they are made."""


def measurements_of(suite: str) -> tuple[Measurement[Any], ...]:
    """The measurements of a suite: all, except for `quick`, which makes the cheap ones."""
    protocols(suite)  # raises for an unknown suite
    return tuple(one for one in MEASUREMENTS if one.quick or suite != "quick")


def run_measurements(
    run: PlannedRun,
    folder: RunFolder,
    summary: Summary,
    *,
    max_images: int = 100,
    measurements: Sequence[Measurement[Any]] | None = None,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Make the suite's measurements on a run whose attempts are done; False after a stop, and the same call resumes.

    Stored facts are not measured again, except those that an error prevented. max_images: for each measurement.
    measurements: instead of the suite's.
    """
    validate.at_least("max_images", max_images, 1)
    wanted = measurements_of(run.suite) if measurements is None else tuple(measurements)
    context = measurement_context(run, summary, max_images=max_images)
    for number, one in enumerate(wanted, 1):
        if stop():
            return False
        known = folder.read_fact(one.fact)
        if known is None or not known.get("impossible", True):
            folder.write_fact(one.fact, one.fact_content(context))
        watch(f"measuring {one.fact}", number, len(wanted))
    return True


def judge_checks(folder: RunFolder, summary: Summary, data: Dataset, *, without: Collection[int] = ()) -> list[Finding]:
    """The findings of all checks on a run, by number. without: checks to leave out."""
    unknown = set(without) - set(CHECKS)
    if unknown:
        raise InputError(f"there is no check {min(unknown)}; they run from 1 to {max(CHECKS)}.")
    plan = summary.plan
    if data.sha256 != plan["data"]["sha256"]:
        raise InputError(
            f"the run in {folder.path} was made on other images (sha256 {plan['data']['sha256'][:12]}..., these have "
            f"{data.sha256[:12]}...); load {plan['data']['n']} of {plan['data']['name']}/{plan['data']['split']}."
        )
    evidence = Evidence(folder=folder, data=data, summary=summary)
    return [CHECKS[number].finding(evidence) for number in sorted(CHECKS) if number not in without]
