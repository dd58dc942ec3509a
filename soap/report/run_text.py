"""The result of a run of the adaptive suite as text, for pages and the command line."""

from soap.evaluation.cascade import HEADLINE_NOTE
from soap.evaluation.suite import SuiteReport
from soap.evaluation.summary import ProtocolResult, Summary, classifier_gain
from soap.evaluation.verdict import DASH, RobustnessVerdict
from soap.report.row_text import defence_text, gradient_text, with_interval
from soap.results import defence_from_json, wilson

NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


def protocol_lines(report: SuiteReport) -> tuple[ProtocolResult, ...]:
    """Clean, each protocol, and the worst case."""
    return (report.summary.clean, *report.summary.protocols, report.summary.worst)


def accuracy_text(line: ProtocolResult, verdict: RobustnessVerdict | None = None) -> str:
    """Accuracy of the defence in per cent with its 95 % interval: '80.7 [78.1, 83.0]'.

    verdict: of the run; a dash where it hides this accuracy.
    """
    return DASH if _hidden(line, verdict) else _share(float(line.values.sum()), line.n)


def bare_accuracy_text(line: ProtocolResult, verdict: RobustnessVerdict | None = None) -> str:
    """The same for the bare classifier on the same points; a dash where it is not known, too."""
    return DASH if line.bare is None or _hidden(line, verdict) else _share(int(line.bare.sum()), line.n)


def run_notes(report: SuiteReport) -> list[str]:
    """The classifier alone and the draws of a random defence; after a failed check, why no accuracy is shown.

    First, that the run was in the headline mode.
    """
    mode = [f"{HEADLINE_NOTE[0].upper()}{HEADLINE_NOTE[1:]}."] * report.summary.headline
    if report.verdict.note:
        return [*mode, report.verdict.note]
    return mode + [words for words in (classifier_note(report.summary), draws_note(report.summary.worst)) if words]


def classifier_note(summary: Summary) -> str:
    """The bare classifier under its own strongest attack, and what the defence gains; empty without a purifier."""
    own, gain = summary.classifier_worst, classifier_gain(summary)
    if own is None or gain is None or not summary.plan["purifies"]:
        return ""
    difference, low, high = (100 * part for part in gain)
    share = _share(int(own.sum()), len(own)).replace(" ", " % ", 1)
    return (
        f"The classifier alone, under its own strongest attack on the same {len(own):,} images: {share}. "
        f"The purifier gains {difference:+.1f} [{low:+.1f}, {high:+.1f}] points in the worst case."
    )


def draws_note(line: ProtocolResult) -> str:
    """The three accuracies of a random defence; empty for a deterministic one."""
    if line.drawn is None or line.worst_of_draws is None or line.majority is None:
        return ""
    k = line.drawn.shape[1]
    return (
        f"The defence is random. In the {line.protocol} case: mean over {k} fresh draws {accuracy_text(line)} %, "
        f"worst of {k} draws {100 * line.worst_of_draws:.1f} %, majority vote of {k} draws {100 * line.majority:.1f} %."
    )


def subject(summary: Summary) -> str:
    """The attacked model and purifier: 'cifar10-resnet18-lc behind SOAP, gradient stop'."""
    target = summary.plan["target"]
    if not summary.plan["purifies"]:
        return str(target["name"])
    defence = defence_from_json(target["defence"])
    return f"{target['name']} behind {defence.name}{gradient_text(defence)}"


def threat_text(summary: Summary) -> str:
    """Model, purifier, suite, radius and images of the run."""
    plan = summary.plan
    radius = f"{NORMS.get(plan['threat']['norm'], plan['threat']['norm'])} radius {plan['threat']['eps']:.4g}"
    behind = f" behind {defence_text(defence_from_json(plan['target']['defence']))}" if plan["purifies"] else ""
    suite = f"suite {plan['suite']}{', headline mode' * summary.headline}"
    where = f"{plan['data']['name']}/{plan['data']['split']}"
    return f"{plan['target']['name']}{behind}, {suite}, {radius}, {summary.worst.n:,} images of {where}."


def _hidden(line: ProtocolResult, verdict: RobustnessVerdict | None) -> bool:
    return verdict is not None and not verdict.shows(line.protocol)


def _share(correct: float, n: int) -> str:
    return with_interval(correct / n, wilson(correct, n))
