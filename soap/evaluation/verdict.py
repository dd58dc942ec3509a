"""The verdict on a suite run: a trusted bound, an upper bound, or not a robustness number."""

from collections.abc import Sequence
from dataclasses import dataclass

from soap.evaluation.checks import FAIL, NOT_RUN, WARN, Finding
from soap.evaluation.plan import NO_ITERATES, NO_PURIFIER, THROUGH_PURIFIER
from soap.evaluation.summary import Summary

TRUSTED = "TRUSTED BOUND"
UPPER = "UPPER BOUND ONLY"
NOTHING = "NOT A ROBUSTNESS NUMBER"

NEEDED = ("transfer", *THROUGH_PURIFIER, "autoattack", "black-box")
"""Protocols of a complete suite. `bpda-start` is not needed: check 14 fails where it makes a difference."""


@dataclass(frozen=True, kw_only=True)
class RobustnessVerdict:
    """name: `TRUSTED`, `UPPER` or `NOTHING`. reasons: why it is not the better one, most serious first."""

    name: str
    reasons: tuple[str, ...]


def judge(findings: Sequence[Finding], summary: Summary) -> RobustnessVerdict:
    """TRUSTED BOUND where every check passes and the suite is complete; NOT A ROBUSTNESS NUMBER where any fails."""
    graded = {state: [_reason(one) for one in findings if one.state == state] for state in (FAIL, WARN, NOT_RUN)}
    missing = [f"{protocol} was not run" for protocol in missing_protocols(summary)]
    if graded[FAIL]:
        return RobustnessVerdict(name=NOTHING, reasons=tuple(graded[FAIL]))
    reasons = (*graded[WARN], *missing, *graded[NOT_RUN])
    return RobustnessVerdict(name=UPPER if reasons else TRUSTED, reasons=reasons)


def missing_protocols(summary: Summary) -> list[str]:
    """Needed protocols that did not run on all images, except those that cannot apply to the defence."""
    why = summary.plan["left_out"]
    done = {line.protocol for line in summary.protocols}
    return [name for name in NEEDED if name not in done and why.get(name) not in (NO_PURIFIER, NO_ITERATES)]


def headline(summary: Summary, verdict: RobustnessVerdict) -> str:
    """The run in one line: worst case with its interval, verdict, and the first reason."""
    if verdict.name == NOTHING:
        share = "no accuracy"  # where a check fails, no accuracy is shown
    else:
        low, high = summary.worst.interval
        share = f"worst {100 * summary.worst.accuracy:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    more = f"; and {len(verdict.reasons) - 1} more" if len(verdict.reasons) > 1 else ""
    why = f" ({verdict.reasons[0]}{more})" if verdict.reasons else ""
    return f"{share} of {summary.worst.n:,} images: {verdict.name}{why}"


def _reason(finding: Finding) -> str:
    return f"check {finding.number}, {finding.name}: {finding.measured}"
