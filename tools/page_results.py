"""docs/results.md: the paper's claims and tables with our numbers beside the printed ones."""

from collections.abc import Sequence
from pathlib import Path

from soap.paper.comparison import Entry, compare_all, heading
from soap.paper.figure_data import FigureData
from soap.paper.judging import JudgedClaim, judge_all
from soap.paper.markdown import claims_markdown, table_markdown
from soap.paper.rows import committed_rows, committed_timings
from soap.paper.tables import TABLES
from soap.report import UPPER_BOUND, markdown_table

SOURCE = "C. Shi, C. Holtz, G. Mishne: Online Adversarial Purification based on Self-Supervised Learning, ICLR 2021"
READING = (
    "Each cell has ours, the paper's number, and the difference ours - paper in points. Ours is the share of test "
    "images in one training of the recipe, or the mean of several. The best figure of a column is bold and "
    "underlined, the second best bold, for ours and for the paper's apart; ours are marked once every method of the "
    "column is measured."
)


def rendered(results: Path) -> str:
    """The page with every table and claim as the committed rows, records and timings have them."""
    rows = committed_rows()
    entries = compare_all(TABLES.values(), rows)
    data = FigureData(folder=results / "figures", rows=rows, timings=committed_timings())
    return results_markdown(entries, judge_all(entries, data))


def results_markdown(entries: Sequence[Entry], judged: Sequence[JudgedClaim]) -> str:
    """The page as Markdown."""
    lines = [[heading(entry), entry.progress, entry.missing_text] for entry in entries]
    parts = [
        "# Results: the paper's tables, ours beside them",
        f"Rendered from result rows by `make render`; only the numbers in footnotes are typed by hand. "
        f"The paper is {SOURCE}.",
        f"**{UPPER_BOUND}**",
        claims_markdown(judged),
        "## The tables, and what is missing",
        f"{READING} A cell reads: ours / paper (difference). `soap reproduce table-1 --json` has the interval and the "
        "rows of every number.",
        markdown_table(["Table", "Cells done", "Missing cells by recipe"], lines),
    ]
    return "\n\n".join([*parts, *map(table_markdown, entries)]) + "\n"
