"""The result of a run of the adaptive suite as text, for pages and the command line."""

from soap.evaluation.suite import SuiteReport
from soap.evaluation.summary import ProtocolResult, Summary
from soap.evaluation.verdict import NOTHING, headline
from soap.report.row_text import defence_text, gradient_text
from soap.results import defence_from_json, wilson

NORMS = {"linf": "Linf", "l2": "L2"}


def shown_lines(report: SuiteReport) -> tuple[ProtocolResult, ...]:
    """Clean, each protocol, and the worst case unless the verdict makes it void."""
    summary = report.summary
    return (summary.clean, *summary.protocols, *(() if report.verdict.name == NOTHING else (summary.worst,)))


def right(line: ProtocolResult) -> str:
    """Accuracy of the defence in per cent with its 95 % interval: '80.7 [78.1, 83.0]'."""
    return _share(line.correct, line.n)


def alone(line: ProtocolResult) -> str:
    """The same for the bare classifier on the same points; a dash if it is not known."""
    return "-" if line.bare is None else _share(int(line.bare.sum()), line.n)


def gain(line: ProtocolResult) -> str:
    """Accuracy of the defence minus that of the bare classifier, in points: '+3.1 [+1.0, +5.2]'."""
    if line.gain is None:
        return "-"
    difference, low, high = (100 * part for part in line.gain)
    return f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"


def subject(summary: Summary) -> str:
    """The attacked model and purifier: 'cifar10-resnet18-lc behind SOAP, gradient stop'."""
    target = summary.plan["target"]
    if not summary.plan["purifies"]:
        return str(target["name"])
    defence = defence_from_json(target["defence"])
    return f"{target['name']} behind {defence.name}{gradient_text(defence)}"


def threat_words(summary: Summary) -> str:
    """Model, purifier, suite, radius and images of the run."""
    plan = summary.plan
    radius = f"{NORMS.get(plan['threat']['norm'], plan['threat']['norm'])} radius {plan['threat']['eps']:.4g}"
    behind = f" behind {defence_text(defence_from_json(plan['target']['defence']))}" if plan["purifies"] else ""
    where = f"{plan['data']['name']}/{plan['data']['split']}"
    return f"{plan['target']['name']}{behind}, suite {plan['suite']}, {radius}, {summary.worst.n:,} images of {where}."


def knowing_words(report: SuiteReport) -> list[str]:
    """Accuracy under attacks that know the purifier, beside that under attacks that do not, on the same images."""
    summary, transfer = report.summary, report.summary.protocol("transfer")
    unknowing = [] if transfer is None else [f"not knowing it {right(transfer).replace(' ', ' % ', 1)}"]
    void = report.verdict.name == NOTHING
    knowing = [] if void else [f"knowing it {right(summary.worst).replace(' ', ' % ', 1)}"]
    return [
        f"An attacker who knows the purifier (quick suite): {headline(summary, report.verdict)}.",
        f"On the same {summary.worst.n:,} images: clean {right(summary.clean).replace(' ', ' % ', 1)}, "
        + ", ".join([*unknowing, *knowing])
        + ".",
    ]


def _share(correct: int, n: int) -> str:
    low, high = wilson(correct, n)
    return f"{100 * correct / n:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
