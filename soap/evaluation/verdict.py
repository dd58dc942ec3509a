"""The verdict on a suite run: checks passed, checks warned, or invalid. Every accuracy is an upper bound.

`RobustnessVerdict.shows` decides which accuracies are shown: after a failed check, those of clean images alone. Files
of a run keep all results.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from soap.evaluation.cascade import HEADLINE_NOTE
from soap.evaluation.checks import FAIL, NOT_RUN, WARN, Finding
from soap.evaluation.plan import NOT_APPLICABLE
from soap.evaluation.protocols import ENDS, QUERIES_ONLY, RELAXED, THROUGH_PURIFIER
from soap.evaluation.summary import CLEAN, WORST, Summary

PASSED = "CHECKS PASSED"
WARNED = "CHECKS WARNED"
INVALID = "INVALID"

DASH = "-"
"""In place of a result that is unknown or not shown."""

SOME_PURIFIERS = (RELAXED, ENDS)
"""Protocols for some kinds of purifiers; runs of older versions do not know them."""

NEEDED = ("transfer", *(rule for rule in THROUGH_PURIFIER if rule not in SOME_PURIFIERS), "autoattack", *QUERIES_ONLY)
"""Protocols of a complete suite. Checks 14 and 20 judge where `start` and `relaxed` are needed."""


@dataclass(frozen=True, kw_only=True)
class RobustnessVerdict:
    """name: `PASSED`, `WARNED` or `INVALID`. reasons: why it is not the better one, most serious first."""

    name: str
    reasons: tuple[str, ...]

    def shows(self, protocol: str) -> bool:
        """Whether accuracies after a protocol (or "clean", "worst") are shown; tables have a dash for others."""
        return self.name != INVALID or protocol == CLEAN

    @property
    def note(self) -> str:
        """Why no accuracy under attack is shown, in one sentence; empty where all are."""
        if self.name != INVALID:
            return ""
        failed = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return (
            f"No accuracy under attack is shown, because a check failed{failed}; the raw data stay in the run folder."
        )

    def measured(self, finding: Finding) -> str | None:
        """What a check measured; None where it may state an accuracy that is hidden. What failed is always shown."""
        return finding.measured if self.name != INVALID or finding.state == FAIL else None

    def __str__(self) -> str:
        more = f"; and {len(self.reasons) - 1} more" if len(self.reasons) > 1 else ""
        return f"{self.name} ({self.reasons[0]}{more})" if self.reasons else self.name


def judge(findings: Sequence[Finding], summary: Summary) -> RobustnessVerdict:
    """CHECKS PASSED where every check passes and the suite is complete; INVALID where any fails.

    A run in the headline mode has CHECKS WARNED at best: its checks see fewer images, and no protocol alone.
    """
    graded = {state: [_reason(one) for one in findings if one.state == state] for state in (FAIL, WARN, NOT_RUN)}
    missing = [f"{protocol} was not run" for protocol in missing_protocols(summary)]
    if graded[FAIL]:
        return RobustnessVerdict(name=INVALID, reasons=tuple(graded[FAIL]))
    mode = [HEADLINE_NOTE] * summary.headline
    reasons = (*graded[WARN], *missing, *mode, *graded[NOT_RUN])
    return RobustnessVerdict(name=WARNED if reasons else PASSED, reasons=reasons)


def missing_protocols(summary: Summary) -> list[str]:
    """Needed protocols that did not run on all images, except those that cannot apply to the defence."""
    why = summary.plan["left_out"]
    return [name for name in NEEDED if name not in summary.done and why.get(name) not in NOT_APPLICABLE]


def headline(summary: Summary, verdict: RobustnessVerdict) -> str:
    """The run in one line: worst case with its interval, images, verdict, and the first reason."""
    return worst_case_line(summary.worst.accuracy, summary.worst.interval, summary.worst.n, verdict)


def worst_case_line(accuracy: float, interval: tuple[float, float], n: int, verdict: RobustnessVerdict) -> str:
    """The line of `headline` for a worst case that is given by its numbers."""
    low, high = interval
    share = f"worst {100 * accuracy:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{share if verdict.shows(WORST) else 'no accuracy'} of {n:,} images: {verdict}"


def _reason(finding: Finding) -> str:
    return f"check {finding.number}, {finding.name}: {finding.measured}"
