"""Render the numbers in docs/ and README.md from the committed rows: `make render`, or `python -m soap.paper.render`.

    python -m soap.paper.render [--check]

--check writes nothing and exits with 1 if a page is out of date.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from soap import bench
from soap._files import atomic
from soap.bench import pages as bench_pages
from soap.paper.pages import label_consistency, purifiers, results, suite_runs
from soap.paper.rows import committed_rows
from soap.report.drawing import png

ROOT = Path(__file__).resolve().parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
COMMAND = "make render"


def _label_consistency(document: str) -> str:
    authors = label_consistency.read_authors(DOCS / "label_consistency.toml")
    return label_consistency.rendered(document, committed_rows(), authors)


def _timings() -> list[bench.BenchRow]:
    return bench_pages.committed_rows(RESULTS)


def _results(document: str) -> str:
    return results.results_markdown(*results.committed_results(), command=COMMAND)


PAGES: dict[Path, Callable[[str], str]] = {
    ROOT / "README.md": lambda document: suite_runs.rendered_readme(document, RESULTS),
    DOCS / "adaptive.md": lambda document: suite_runs.rendered_adaptive(document, RESULTS),
    DOCS / "label_consistency.md": _label_consistency,
    DOCS / "models.md": suite_runs.rendered_models,
    DOCS / "performance.md": lambda document: bench_pages.rendered_performance(document, _timings()),
    DOCS / "purifiers.md": lambda document: purifiers.rendered(document, committed_rows(), RESULTS),
    DOCS / "results.md": _results,
    DOCS / "scale.md": lambda document: bench_pages.rendered_scale(document, _timings()),
}
"""Pages, and the functions from their present text to their rendered text."""


def rendered(path: Path) -> str:
    """The rendered text of one of `PAGES`."""
    return PAGES[path](path.read_text(encoding="utf-8"))


def main() -> int:
    """Write, or check, all pages; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m soap.paper.render", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    given = parser.parse_args()
    stale = [path for path in PAGES if rendered(path) != path.read_text(encoding="utf-8")]
    for path in stale:
        print(path.relative_to(ROOT))
        if not given.check:
            atomic.write_text(path, rendered(path))
            if path.name == "performance.md":
                (DOCS / bench_pages.PICTURE).write_bytes(png(bench_pages.draw(_timings())))
    return int(given.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
