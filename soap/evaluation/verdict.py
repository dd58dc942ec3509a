"""What a run's figure is worth: a bound to trust, an upper bound, or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from soap.evaluation.adaptive.attempts import THROUGH
from soap.evaluation.adaptive.checks import FAIL, NOT_RUN, WARN, Finding
from soap.evaluation.adaptive.summary import Summary

TRUSTED = "TRUSTED BOUND"
UPPER = "UPPER BOUND ONLY"
NOTHING = "NOT A ROBUSTNESS NUMBER"

NEEDED = ("transfer", *THROUGH, "autoattack", "black-box")
"""Protocols without which a suite is incomplete, where the target allows them; not `bpda-start`, without which check 14
fails where it was wanted."""

EXCUSES = ("there is no purifier", "the purifier does not tell its steps")
"""Reasons for which a protocol may be missing: it does not exist for the target."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """name: `TRUSTED`, `UPPER` or `NOTHING`. reasons: what keeps it from the one above, gravest first."""

    name: str
    reasons: tuple[str, ...]


def verdict(findings: Sequence[Finding], summary: Summary) -> Verdict:
    """TRUSTED BOUND where every check passes and the adaptive suite is complete; any FAIL makes the figure void."""
    graded = {state: [_reason(one) for one in findings if one.state == state] for state in (FAIL, WARN, NOT_RUN)}
    missing = [f"{protocol} was not run" for protocol in missing_protocols(summary)]
    if graded[FAIL]:
        return Verdict(name=NOTHING, reasons=tuple(graded[FAIL]))
    reasons = (*graded[WARN], *missing, *graded[NOT_RUN])
    return Verdict(name=UPPER if reasons else TRUSTED, reasons=reasons)


def missing_protocols(summary: Summary) -> list[str]:
    """Protocols that the suite needs and that are not there, or not done for all images."""
    whys = summary.plan["left_out"]
    done = {line.protocol for line in summary.protocols}
    return [name for name in NEEDED if name not in done and whys.get(name) not in EXCUSES]


def headline(summary: Summary, judged: Verdict) -> str:
    """The run in one line: the worst case with its interval, the verdict, and the first reason for it."""
    if judged.name == NOTHING:
        share = "no figure"  # the promise: where a check fails, no bare percentage is shown
    else:
        low, high = summary.worst.interval
        share = f"worst {100 * summary.worst.accuracy:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    why = f" ({judged.reasons[0]}{_and_more(len(judged.reasons) - 1)})" if judged.reasons else ""
    return f"{share} of {summary.worst.n:,} images: {judged.name}{why}"


def _reason(finding: Finding) -> str:
    return f"check {finding.number}, {finding.name}: {finding.figure}"


def _and_more(others: int) -> str:
    return f"; and {others} more" if others > 0 else ""
