"""Render docs/results.md and docs/results.html from what is committed (rows, curves, timings) and the paper's numbers.

python tools/render_results.py
"""

from pathlib import Path

from soap import bench, paper
from soap._files import atomic
from soap.evaluation.gathered import Material
from soap.paper.verdicts import Findings, Judged, judge_all
from soap.report.comparison import compare
from soap.report.comparison_words import Entry
from soap.report.measured import epoch_seconds, numbers
from soap.report.results_page import results_html, results_markdown

ROOT = Path(__file__).resolve().parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
COMMAND = "python tools/render_results.py"


def entries() -> list[Entry]:
    """Every table of the paper, filled from the committed rows."""
    rows = paper.committed_rows()
    return [
        compare(table, rows, paper.explanation) if isinstance(table, paper.Table) else table
        for table in paper.TABLES.values()
    ]


def judged(tables: list[Entry]) -> list[Judged]:
    """Every claim of the paper, judged by the tables and by the committed curves, sweeps and timings."""
    timings = [row for path in sorted(RESULTS.glob("bench-*.jsonl")) for row in bench.read(path)]
    material = Material(folder=RESULTS / "figures", rows=paper.committed_rows(), timings=timings)
    return judge_all(Findings(tables=numbers(tables), seconds=epoch_seconds(timings), material=material))


def rendered() -> dict[Path, str]:
    """The text of each page by its path."""
    tables = entries()
    claims = judged(tables)
    return {
        DOCS / "results.md": results_markdown(tables, claims, command=COMMAND),
        DOCS / "results.html": results_html(tables, claims, command=COMMAND),
    }


if __name__ == "__main__":
    for path, text in rendered().items():
        atomic.write_text(path, text)
        print(f"{path}: {len(text.encode()):,} bytes")
