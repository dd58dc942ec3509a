"""Results of evaluations as JSON values: a suite run, its verification, a comparison of runs, and a tuning."""

from dataclasses import asdict
from typing import Any

from soap.evaluation.comparison import RunComparison
from soap.evaluation.suite import SuiteReport
from soap.evaluation.summary import WORST, ProtocolResult, Summary, classifier_gain
from soap.evaluation.tuning import Tuning
from soap.evaluation.verdict import RobustnessVerdict
from soap.evaluation.verification import Verification
from soap.report.row_text import defence_text
from soap.results import defence_from_json, wilson


def report_json(report: SuiteReport) -> dict[str, Any]:
    """A suite run: verdict, accuracies, checks and rows.

    Where a check failed, `note` says which; headline, accuracies under attack and what other checks measured are null,
    and there are no rows.
    """
    summary, verdict = report.summary, report.verdict
    shown = verdict.shows(WORST)
    return {
        "model": summary.plan["target"]["name"],
        "defence": defence_text(defence_from_json(summary.plan["target"]["defence"])),
        "threat": summary.plan["threat"],
        "suite": summary.plan["suite"],
        "verdict": {"name": verdict.name, "reasons": list(verdict.reasons)},
        "note": verdict.note or None,
        "headline": protocol_json(summary.worst) if shown else None,
        "classifier": _classifier(summary) if shown else None,
        "clean": protocol_json(summary.clean),
        "protocols": [protocol_json(line, verdict) for line in summary.protocols],
        "checks": [{**asdict(one), "measured": verdict.measured(one)} for one in report.findings],
        "left_out": dict(summary.plan["left_out"]),
        "rows": [row.as_json() for row in report.rows] if shown else [],
    }


def protocol_json(line: ProtocolResult, verdict: RobustnessVerdict | None = None) -> dict[str, Any]:
    """The accuracies of one protocol; null where the run's verdict hides them."""
    accuracies = {
        "correct": line.correct,
        "accuracy": line.accuracy,
        "interval": list(line.interval),
        "worst_of_draws": line.worst_of_draws,
        "majority": line.majority,
        "bare": None if line.bare is None else float(line.bare.mean()),
    }
    if verdict is not None and not verdict.shows(line.protocol):
        accuracies = dict.fromkeys(accuracies)
    return {"protocol": line.protocol, "n": line.n, **accuracies, "seconds": round(line.seconds, 3)}


def _classifier(summary: Summary) -> dict[str, Any] | None:
    """The bare classifier under its own strongest attack, and the gain of the defence over it."""
    own, gain = summary.classifier_worst, classifier_gain(summary)
    if own is None or gain is None:
        return None
    return {"n": len(own), "correct": int(own.sum()), "interval": list(wilson(int(own.sum()), len(own))), "gain": gain}


def verification_json(found: Verification) -> dict[str, Any]:
    """Whether a report holds, and each of its rows with the count found now; null where the verdict hides it."""
    rows = [
        {
            "protocol": one.row.attack.name,
            "defence": defence_text(one.row.defence),
            "n": one.row.n,
            "reported": one.reported if found.shows(one) else None,
            "found": one.row.correct if found.shows(one) else None,
            "holds": one.holds,
        }
        for one in found.comparisons
    ]
    stated = {"holds": found.holds, "problems": list(found.problems), "labels": found.labels, "changed": found.changed}
    return {**stated, "note": found.note or None, "rows": rows}


def comparison_json(found: RunComparison) -> dict[str, Any]:
    """Two runs, protocol by protocol."""
    return {
        "a": _subject(found.a),
        "b": _subject(found.b),
        "protocols": [asdict(line) for line in found.lines],
        "missing_in_a": list(found.missing_in_a),
        "missing_in_b": list(found.missing_in_b),
    }


def _subject(report: SuiteReport) -> dict[str, Any]:
    plan = report.summary.plan
    return {
        "run": report.folder.path,
        "model": plan["target"]["name"],
        "defence": defence_text(defence_from_json(plan["target"]["defence"])),
        "suite": plan["suite"],
        "verdict": report.verdict.name,
        "note": report.verdict.note or None,
    }


def tuning_json(found: Tuning) -> dict[str, Any]:
    """The chosen settings, and the accuracies without and with them."""
    best = found.best
    return {
        "model": found.model,
        "data": found.data,
        "n": found.n,
        "eps_adv": found.eps_adv,
        "elbow": best.elbow,
        "purifier": asdict(found.purification),
        "helps": found.helps,
        "accuracy": {
            "clean": {"bare": found.bare_clean, "purified": best.clean_accuracy},
            "attacked": {"bare": found.bare_attacked, "purified": best.attacked_accuracy},
        },
    }
