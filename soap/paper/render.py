"""Render the numbers in docs/ and README.md from the committed rows: `make render`, or `python -m soap.paper.render`.

    python -m soap.paper.render [--check] [--html FILE]

--check writes nothing and exits with 1 if a page is out of date. --html writes the page of results as one HTML file;
`make docs` puts that page on the site.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from soap._files import atomic
from soap.bench import performance_page, scale_page
from soap.export import docs_page
from soap.paper.pages import adaptive, label_consistency, purifiers, readme, results
from soap.paper.rows import committed_rows
from soap.report.drawing import png

ROOT = Path(__file__).resolve().parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
COMMAND = "make render"


def _label_consistency(document: str) -> str:
    authors = label_consistency.read_authors(DOCS / "label_consistency.toml")
    return label_consistency.rendered(document, committed_rows(), authors)


def _performance(document: str) -> str:
    rows, tried = (performance_page.committed_rows(kind, RESULTS) for kind in ("bench", "variants"))
    return performance_page.rendered(document, rows, tried, performance_page.committed_paddings(RESULTS))


def _results(document: str) -> str:
    return results.results_markdown(*results.committed_results(), command=COMMAND)


PAGES: dict[Path, Callable[[str], str]] = {
    ROOT / "README.md": lambda document: readme.rendered_readme(document, RESULTS),
    DOCS / "adaptive.md": lambda document: adaptive.rendered(document, RESULTS),
    DOCS / "export.md": lambda document: docs_page.rendered(document, RESULTS),
    DOCS / "label_consistency.md": _label_consistency,
    DOCS / "models.md": readme.rendered_models,
    DOCS / "performance.md": _performance,
    DOCS / "purifiers.md": lambda document: purifiers.rendered(document, committed_rows(), RESULTS),
    DOCS / "results.md": _results,
    DOCS / "scale.md": lambda document: scale_page.rendered(document, scale_page.gpu_rows(RESULTS)),
}
"""Pages, and the functions from their present text to their rendered text."""


def rendered(path: Path) -> str:
    """The rendered text of one of `PAGES`."""
    return PAGES[path](path.read_text(encoding="utf-8"))


def results_html() -> str:
    """The page of results as one HTML file."""
    return results.results_html(*results.committed_results(), command=COMMAND)


def main() -> int:
    """Write, or check, all pages; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m soap.paper.render", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page of results as one HTML file")
    given = parser.parse_args()
    if given.html is not None:
        atomic.write_text(given.html, results_html())
        return 0
    stale = [path for path in PAGES if rendered(path) != path.read_text(encoding="utf-8")]
    for path in stale:
        print(path.relative_to(ROOT))
        if not given.check:
            atomic.write_text(path, rendered(path))
            if path.name == "performance.md":
                plot = performance_page.draw(performance_page.committed_rows("bench", RESULTS))
                (DOCS / performance_page.PICTURE).write_bytes(png(plot))
    return int(given.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
