"""The committed result rows and timings: those in `results/` of a source checkout, and those beside bundled weights."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from soap import bench, zoo
from soap._files import atomic
from soap.results import Row, Store


def results_folder() -> Path | None:
    """`results/` of the source checkout that this package runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    folder = root / "results"
    return folder if (root / "pyproject.toml").is_file() and folder.is_dir() else None


def committed_rows() -> list[Row]:
    """All rows of the checkout's `results/` and of the zoo, without duplicates."""
    folders = [folder for folder in (zoo.folder(), results_folder()) if folder is not None]
    return without_duplicates(row for folder in folders for row in read_folder(folder))


def committed_timings() -> list[dict[str, Any]]:
    """All rows of `soap bench` in the checkout's `results/`."""
    folder = results_folder()
    return [] if folder is None else [row for path in sorted(folder.glob("bench-*.jsonl")) for row in bench.read(path)]


def read_folder(folder: Path) -> list[Row]:
    """Rows of all JSONL files in `folder` that hold result rows; files of timings are skipped."""
    return [row for path in sorted(folder.glob("*.jsonl")) if _holds_rows(path) for row in Store(path).read()]


def without_duplicates(rows: Iterable[Row]) -> list[Row]:
    """Rows in their order; of several with the same key, the latest."""
    kept: dict[str, Row] = {}
    for row in rows:
        if row.key not in kept or kept[row.key].provenance.date <= row.provenance.date:
            kept[row.key] = row
    return list(kept.values())


def _holds_rows(path: Path) -> bool:
    """Whether the first line has a protocol, which result rows alone have. `Store` reports a line it cannot read."""
    with atomic.file_errors(path), path.open("rb") as file:
        first = file.readline()
    try:
        entry = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return isinstance(entry, dict) and "protocol" in entry
