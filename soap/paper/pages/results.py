"""The paper's claims and tables, ours beside them, as Markdown and as one HTML page without scripts."""

from collections.abc import Sequence

from soap.report import verdicts
from soap.report.accuracy import UPPER_BOUND
from soap.report.comparison import SIGNS, Comparison, Shown, points
from soap.report.comparison_words import BINS, Entry, bin_of, figure, heading, missing, origin, said, spread
from soap.report.drawing import DARK, LIGHT
from soap.report.markdown import markdown_table
from soap.report.paper_tables import Heading
from soap.report.templating import environment
from soap.report.verdicts import Judged

SOURCE = "C. Shi, C. Holtz, G. Mishne: Online Adversarial Purification based on Self-Supervised Learning, ICLR 2021"
READING = (
    "Each cell has ours, the paper's number, and the difference ours - paper in points. Ours is the share of test "
    "images in one training of the recipe, or the mean of several. The best figure of a column is bold and "
    "underlined, the second best bold, for ours and for the paper's apart; ours are marked once every method of the "
    "column is measured."
)


def results_html(entries: Sequence[Entry], judged: Sequence[Judged], *, command: str) -> str:
    """The page as text; `command` is how it was made."""
    page = environment()
    page.filters |= {"figure": figure, "points": points}
    page.tests["comparison"] = lambda entry: isinstance(entry, Comparison)
    return page.get_template("results.html").render(
        entries=entries,
        judged=judged,
        verdicts=verdicts,
        command=command,
        heading=heading,
        bin_of=bin_of,
        spread=spread,
        origin=origin,
        said=said,
        missing=missing,
        reading=READING,
        upper_bound=UPPER_BOUND,
        source=SOURCE,
        bins=BINS,
        signs=SIGNS,
        light=LIGHT,
        dark=DARK,
    )


def results_markdown(entries: Sequence[Entry], judged: Sequence[Judged], *, command: str) -> str:
    """The page for people who read the repository; `command` is how it was made."""
    parts = [
        "# Results: the paper's tables, ours beside them",
        f"Rendered from result rows by `{command}`; no number but those in footnotes is typed by hand. "
        f"The paper is {SOURCE}.",
        f"**{UPPER_BOUND}**",
        *_claims(judged),
        "## The tables, and what is missing",
        f"{READING} A cell reads: ours / paper (difference). The page `results.html` beside this one has the same with "
        "colours, and the interval and origin of every figure.",
        markdown_table(["Table", "Cells done", "Missing cells by recipe"], [_state(entry) for entry in entries]),
    ]
    for entry in entries:
        parts += [f"## {heading(entry)}", _caption(entry)]
        if isinstance(entry, Comparison):
            for group in entry.groups:
                parts += [f"### {group.label}", _group(entry, group)]
            parts += [f"<sup>{number}</sup> {note}" for number, note in enumerate(entry.notes, 1)]
            parts += entry.remarks
        else:
            parts += [markdown_table(entry.head, entry.rows), *entry.notes]
    return "\n\n".join(parts) + "\n"


def _claims(judged: Sequence[Judged]) -> list[str]:
    """The claims, those that did not hold first."""
    parts = [f"## {verdicts.TITLE}", f"{verdicts.READING} Of {len(judged)} claims: {verdicts.counted(judged)}."]
    for held, own in verdicts.grouped(judged).items():
        lines = [
            [
                f"{one.claim.text} ({verdicts.source(one.claim)}) *Rule: {one.rule}.*",
                one.ours.evidence,
                verdicts.by_the_paper(one),
            ]
            for one in own
        ]
        if lines:
            head = f"### {verdicts.MARKS[held]} {verdicts.WORDS[held].capitalize()}: {len(own)}"
            lines = [[text.replace("|", "\\|") for text in line] for line in lines]
            parts += [head, markdown_table(["Claim", "Our numbers", "By the paper's own numbers"], lines)]
    signs = verdicts.signs_in(judged)
    return [*parts, f"{signs}."] if signs else parts


def _state(entry: Entry) -> list[str]:
    if not isinstance(entry, Comparison):
        return [heading(entry), "from the code", ""]
    return [heading(entry), f"{entry.done} of {entry.wanted}", missing(entry)]


def _caption(entry: Entry) -> str:
    return entry.table.caption if isinstance(entry, Comparison) else entry.caption


def _group(entry: Comparison, group: Heading) -> str:
    """The columns of one group as a table; a method with several rows has a line of its own above them."""
    columns = entry.table.columns
    lines: list[list[str]] = []
    section = ""
    for row in entry.rows:
        if row.section != section:
            section = row.section
            lines.append([f"*{section}*", *[""] * len(columns)])
        cells = [entry.cells.get((row.name, group.name, column.name)) for column in columns]
        lines.append([row.label.replace("*", "\\*"), *("" if shown is None else _cell(shown) for shown in cells)])
    return markdown_table([entry.table.stub, *(column.label for column in columns)], lines)


def _cell(shown: Shown) -> str:
    """'61.54 / **61.88** (−0.34)', with signs and the number of its footnote."""
    note = "" if shown.note is None else f"<sup>{shown.note}</sup>"
    difference = f" ({points(shown.difference)})" if shown.difference is not None else ""
    ours, paper = _marked(figure(shown.ours), shown.mark), _marked(figure(shown.cell.printed), shown.cell.mark)
    return f"{ours} / {paper}{difference}{''.join(shown.signs)}{note}"


def _marked(text: str, mark: str) -> str:
    return {"best": f"<u>**{text}**</u>", "second": f"**{text}**", "": text}[mark]
