"""Render docs/results.md and docs/results.html from the committed result rows and the paper's printed numbers.

    python tools/render_results.py
"""

from pathlib import Path

from soap import files, paper
from soap.report.comparison import compare
from soap.report.comparison_words import Entry
from soap.report.results_page import results_html, results_markdown

DOCS = Path(__file__).resolve().parents[1] / "docs"
COMMAND = "python tools/render_results.py"


def entries() -> list[Entry]:
    """Every table of the paper, filled from the committed rows."""
    rows = paper.committed_rows()
    return [
        compare(table, rows, paper.explanation) if isinstance(table, paper.Table) else table
        for table in paper.TABLES.values()
    ]


def rendered() -> dict[Path, str]:
    """The text of each page by its path."""
    tables = entries()
    return {
        DOCS / "results.md": results_markdown(tables, command=COMMAND),
        DOCS / "results.html": results_html(tables, command=COMMAND),
    }


if __name__ == "__main__":
    for path, text in rendered().items():
        files.write_text(path, text)
        print(f"{path}: {len(text.encode()):,} bytes")
