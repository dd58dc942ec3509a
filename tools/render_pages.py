"""Render the numbers in docs/, README.md and the web page from committed rows: `make render`.

    python tools/render_pages.py [--check]

--check writes nothing and exits with 1 if a file is out of date.
"""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import export_page
import libraries_table
import page_label_consistency
import page_measurements
import page_performance
import page_purifiers
import page_results
import page_suite_runs

from soap._files import atomic
from soap.paper.rows import committed_rows, committed_timings
from soap.report import with_section
from soap.report.drawing import png
from soap.results import Store

ROOT = Path(__file__).resolve().parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "results"

rows = cache(committed_rows)
timings = cache(lambda: page_performance.latest(committed_timings()))
runs = cache(lambda: page_suite_runs.committed_runs(RESULTS / "adaptive"))


def _purifiers(document: str) -> str:
    document = with_section(document, "libraries", libraries_table.table(libraries_table.read()))
    return page_purifiers.rendered(document, rows(), RESULTS)


def _export(document: str) -> str:
    document = with_section(
        document, "figures", export_page.table(export_page.committed_rows(RESULTS / "export.jsonl"))
    )
    return with_section(document, "ways", export_page.agreement_table(RESULTS / "attempts" / "export-agreement.jsonl"))


def _label_consistency(document: str) -> str:
    authors = page_label_consistency.read_authors(DOCS / "label_consistency.toml")
    return with_section(document, "evidence", page_label_consistency.evidence(rows(), authors))


def _readme(document: str) -> str:
    table = page_suite_runs.evaluated_models_table(page_suite_runs.bundled_rows(), runs())
    return with_section(document, "results", table)


def _section(name: str, content: Callable[[], str]) -> Callable[[str], str]:
    return lambda document: with_section(document, name, content())


PAGES: dict[Path, Callable[[str], str]] = {
    ROOT / "README.md": _readme,
    ROOT / "soap" / "serve" / "static" / "adaptive.json": lambda document: page_suite_runs.worst_cases_json(runs()),
    DOCS / "adaptive.md": _section("figures", lambda: page_suite_runs.results_section(runs())),
    DOCS / "detection.md": _section(
        "figures", lambda: page_measurements.detection_table(Store(RESULTS / "detection.jsonl").read())
    ),
    DOCS / "export.md": _export,
    DOCS / "label_consistency.md": _label_consistency,
    DOCS / "models.md": _section("results", page_suite_runs.bundled_models_table),
    DOCS / "performance.md": lambda document: page_performance.rendered_performance(document, timings()),
    DOCS / "purifiers.md": _purifiers,
    DOCS / "reliability.md": _section(
        "figures",
        lambda: page_measurements.reliability_table(page_measurements.reliability_rows(RESULTS / "reliability.jsonl")),
    ),
    DOCS / "results.md": lambda document: page_results.rendered(RESULTS),
    DOCS / "scale.md": lambda document: page_performance.rendered_scale(document, timings()),
    DOCS / "service.md": _section(
        "figures",
        lambda: page_measurements.service_table(page_measurements.service_rows(RESULTS / "service.jsonl")),
    ),
}
"""Files, and the functions from their present text to their rendered text."""


def rendered(path: Path) -> str:
    """The rendered text of one of `PAGES`."""
    return PAGES[path](path.read_text(encoding="utf-8"))


def main(check: bool) -> int:
    """Write all files, or check them; returns the exit code."""
    stale = [path for path in PAGES if rendered(path) != path.read_text(encoding="utf-8")]
    for path in stale:
        print(path.relative_to(ROOT))
        if not check:
            atomic.write_text(path, rendered(path))
            if path.name == "performance.md":
                (DOCS / page_performance.PICTURE).write_bytes(png(page_performance.draw(timings())))
    return int(check and bool(stale))


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    sys.exit(main(check=sys.argv[1:] == ["--check"]))
