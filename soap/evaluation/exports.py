"""A report in other formats: pandas, CSV, JSON, LaTeX, BibTeX and RobustBench's model_info.

Where a check failed, no accuracy under attack is exported: it is not a robustness number.
"""

import csv
import importlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from soap.data.html_view import html_table
from soap.errors import InputError, unknown
from soap.evaluation.summary import WORST
from soap.evaluation.verdict import DASH, INVALID, RobustnessVerdict, worst_case_line
from soap.results import Row
from soap.specs import DefenceSpec, call_text

if TYPE_CHECKING:
    from soap.evaluation.suite import Report

COLUMNS = ("protocol", "model", "defence", "attack", "n", "correct", "accuracy", "low", "high", "seconds", "note")
"""The columns of a table of results: counts, accuracy in [0, 1] with its 95 % interval, and seconds.

note: why counts and accuracy of the line are missing; empty where they are there.
"""

ROBUSTBENCH_FIELDS = (
    "link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture", "eps",
    "clean_acc", "reported", "autoattack_acc", "external", "footnote", "unreliable",
)  # fmt: skip
"""The fields of a file of RobustBench's model_info, in their usual order."""

_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def result_lines(report: "Report") -> list[dict[str, Any]]:
    """One line of `COLUMNS` for each result row."""
    return [_line(row, report.verdict) for row in report.rows]


def as_pandas(report: "Report") -> Any:
    """The result rows as a pandas DataFrame with `COLUMNS`."""
    return data_frame(result_lines(report), columns=list(COLUMNS))


def data_frame(lines: Sequence[Mapping[str, Any]], columns: list[str] | None = None) -> Any:
    """A pandas DataFrame of the lines; InputError where pandas is not installed."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        raise InputError("to_pandas needs pandas, which is not installed: pip install pandas.") from None
    return pandas.DataFrame(lines, columns=columns)


def as_csv(report: "Report") -> str:
    """The result rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(result_lines(report))
    return text.getvalue()


def as_json(report: "Report") -> str:
    """Verdict and result rows as JSON; no rows, and a note that says why, where a check failed."""
    rows = report.rows if report.verdict.shows(WORST) else ()
    content = {
        "verdict": asdict(report.verdict),
        "note": report.verdict.note or None,
        "rows": [row.as_json() for row in rows],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def as_html(report: "Report") -> str:
    """The worst case with the verdict, and a table of the results with dashes where a check failed."""
    lines = [
        {
            "attack": line["attack"],
            "defence": line["defence"],
            "accuracy, %": DASH
            if line["accuracy"] is None
            else f"{100 * line['accuracy']:.1f} [{100 * line['low']:.1f}, {100 * line['high']:.1f}]",
            "n": line["n"],
        }
        for line in result_lines(report)
    ]
    line = worst_case_line(report.worst, report.interval, report.n, report.verdict)
    return f"<p><b>{escape(line)}</b></p>{html_table(lines)}"


def as_latex(report: "Report") -> str:
    """A booktabs table of the defence's results, the worst case in bold; the caption states the verdict."""
    worst, verdict = report.worst_row, report.verdict
    lines = []
    for row in report.rows:
        if row.defence == worst.defence and row.attack.against is None:
            low, high = (100 * share for share in row.interval)
            numbers = [f"{100 * row.accuracy:.1f}", f"[{low:.1f}, {high:.1f}]"]
            shown = verdict.shows(row.attack.name)
            cells = [_escaped(row.attack.name), *(numbers if shown else ("--", "--")), str(row.n)]
            lines.append([rf"\textbf{{{cell}}}" for cell in cells] if row is worst and shown else cells)
    subject = f"{worst.model} on {worst.data}, defence {_defence_text(worst.defence)}"
    bound = "an upper bound on robustness, with 95 % intervals"
    reasons = f" ({'; '.join(verdict.reasons)})" if verdict.reasons else ""
    caption = f"Accuracy under attack of {subject}: {bound}. Verdict: {verdict.name}{reasons}."
    if verdict.note:
        caption = f"Accuracy under attack of {subject}. Verdict: {verdict.name}. {verdict.note}"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(caption)}}}",
            r"\begin{tabular}{lrlr}",
            r"\toprule",
            r"protocol & accuracy, \% & 95 \% interval & $n$ \\",
            r"\midrule",
            *(" & ".join(cells) + r" \\" for cells in lines),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def as_bibtex(report: "Report") -> str:
    """A BibTeX entry of the run: model, worst case with interval and n, verdict, version, commit and date."""
    worst, verdict = report.worst_row, report.verdict
    made = worst.provenance
    line = worst_case_line(report.worst, report.interval, report.n, verdict)
    fields = {
        "author": "{the soap-defense contributors}",
        "title": f"{{Robustness evaluation of {_escaped(worst.model)} on {_escaped(worst.data)}}}",
        "howpublished": f"soap-defense {_escaped(made.version)}, commit {_escaped(made.commit or 'unknown')}",
        "year": made.date[:4],
        "note": _escaped(f"Defence {_defence_text(worst.defence)}: {line}. Evaluated {made.date[:10]}."),
    }
    key = re.sub("[^A-Za-z0-9]+", "-", worst.model).strip("-")
    entries = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@misc{{soap-{key}-{worst.key},\n{entries}}}\n"


def as_robustbench(report: "Report", **known: Any) -> dict[str, Any]:
    """The report with the fields of RobustBench's model_info; None where a value is unknown.

    known: values that a run does not hold, e.g. authors, link and venue. clean_acc and autoattack_acc are those of the
    run, in per cent; external is its worst case, unreliable is true where a check failed, footnote states
    interval and verdict.
    """
    for name in known:
        if name not in ROBUSTBENCH_FIELDS:
            raise unknown("field", name, ROBUSTBENCH_FIELDS)
    worst = report.worst_row
    own = {row.attack.name: row for row in report.rows if row.defence == worst.defence and not row.attack.against}
    own = {name: row for name, row in own.items() if report.verdict.shows(name)}
    clean = next((row for row in own.values() if row.attack.steps[0].name == "Clean"), None)
    folder = getattr(report, "folder", None)
    cost = None if folder is None else (folder.read_fact("cost") or {}).get("defended")
    threat = None if folder is None else folder.plan()["threat"]
    ball = "" if threat is None else f"{threat['norm']}, "
    verdict, (low, high) = report.verdict, worst.interval
    shown = verdict.shows(worst.attack.name)
    interval = f"95 % interval of external [{100 * low:.2f}, {100 * high:.2f}], " if shown else ""
    reasons = f": {'; '.join(verdict.reasons)}" if verdict.reasons and not verdict.note else ""
    note = f". {verdict.note}" if verdict.note else ""
    found = {
        "name": worst.model,
        "number_forward_passes": None if cost is None else round(cost["forward"]),
        "dataset": worst.data,
        "eps": None if threat is None else _fraction(threat["eps"]),
        "clean_acc": _percent(clean),
        "autoattack_acc": _percent(own.get("autoattack")),
        "external": _percent(worst) if shown else None,
        "footnote": f"{ball}{interval}{worst.n} images; {verdict.name}{reasons}{note}",
        "unreliable": verdict.name == INVALID,
    }
    return {name: known.get(name, found.get(name)) for name in ROBUSTBENCH_FIELDS}


def robustbench_json(report: "Report") -> str:
    """The text of a file of RobustBench's model_info."""
    return json.dumps(as_robustbench(report), indent=2, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[["Report"], str]] = {
    "latex": as_latex,
    "bibtex": as_bibtex,
    "csv": as_csv,
    "json": as_json,
    "robustbench": robustbench_json,
}
"""The text formats of a report by name."""

SUFFIXES = {"latex": ".tex", "bibtex": ".bib", "csv": ".csv", "json": ".json", "robustbench": ".robustbench.json"}
"""How the names of files in each format end."""


def report_text(report: "Report", format: str) -> str:
    """The report in one of `FORMATS`."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return FORMATS[format](report)


def format_of(name: str) -> str:
    """The format that the end of a file's name states."""
    for format in sorted(SUFFIXES, key=lambda one: -len(SUFFIXES[one])):
        if name.endswith(SUFFIXES[format]):
            return format
    raise InputError(f"{name} ends in none of {', '.join(SUFFIXES.values())}; name the file so, or give the format.")


def _line(row: Row, verdict: RobustnessVerdict) -> dict[str, Any]:
    shown, (low, high) = verdict.shows(row.attack.name), row.interval
    aimed = "" if row.attack.against is None else f", against {_defence_text(row.attack.against)}"
    return {
        "protocol": row.protocol,
        "model": row.model,
        "defence": _defence_text(row.defence),
        "attack": f"{row.attack.name}{aimed}",
        "n": row.n,
        "correct": row.correct if shown else None,
        "accuracy": row.accuracy if shown else None,
        "low": low if shown else None,
        "high": high if shown else None,
        "seconds": row.seconds,
        "note": "" if shown else verdict.note,
    }


def _defence_text(defence: DefenceSpec) -> str:
    return call_text(defence) if defence.purifies else defence.name


def _percent(row: Row | None) -> str | None:
    """Accuracy in per cent with two digits, as RobustBench writes it: "70.08"."""
    return None if row is None else f"{100 * row.accuracy:.2f}"


def _fraction(eps: float) -> str:
    """A radius as RobustBench writes it: "8/255" for small multiples of 1/255, "0.5" for others."""
    whole = round(eps * 255)
    return f"{whole}/255" if whole and abs(eps * 255 - whole) < 1e-6 and eps < 0.1 else f"{eps:g}"


def _escaped(text: str) -> str:
    """The text with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(character, character) for character in text)
