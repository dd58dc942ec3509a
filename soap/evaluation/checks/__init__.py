"""The 19 checks that doubt a run's figure, from its files alone; docs/checks/ has a paragraph on each."""

from collections.abc import Collection

from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.adaptive.checks import (
    beside,
    comparisons,
    effort,
    gradients,
    inference,
    legality,
    outputs,
    planted,
    radii,
    records,
)
from soap.evaluation.adaptive.checks.finding import FAIL, NOT_RUN, PASS, STATES, WARN, Finding
from soap.evaluation.adaptive.checks.registry import CHECKS, Check, Evidence
from soap.evaluation.adaptive.folder import RunFolder

__all__ = ["CHECKS", "FAIL", "NOT_RUN", "PASS", "STATES", "WARN", "Check", "Finding", "findings"]

THEMES = (legality, outputs, inference, gradients, effort, radii, comparisons, beside, planted, records)
"""Importing them registers their checks."""


def findings(folder: RunFolder, data: Dataset, *, without: Collection[int] = ()) -> list[Finding]:
    """What every check says of the run in `folder` on `data`, by number. without: checks to leave out."""
    unknown = set(without) - set(CHECKS)
    if unknown:
        raise InputError(f"there is no check {min(unknown)}; they run from 1 to {max(CHECKS)}.")
    plan = folder.plan()
    if data.sha256 != plan["data"]["sha256"]:
        raise InputError(
            f"the run in {folder.path} was made on other images (sha256 {plan['data']['sha256'][:12]}..., these have "
            f"{data.sha256[:12]}...); load {plan['data']['n']} of {plan['data']['name']}/{plan['data']['split']}."
        )
    evidence = Evidence(folder=folder, data=data)
    return [CHECKS[number].finding(evidence) for number in sorted(CHECKS) if number not in without]
