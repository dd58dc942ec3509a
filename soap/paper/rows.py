"""The result rows that the paper's tables are filled from: those committed, and those beside the bundled weights."""

import json
from collections.abc import Iterable
from pathlib import Path

from soap import zoo
from soap._files import atomic
from soap.results import Row, Store


def results_folder() -> Path | None:
    """`results/` of the source checkout that this package runs from; None where the package is installed."""
    root = Path(__file__).resolve().parents[2]
    folder = root / "results"
    return folder if (root / "pyproject.toml").is_file() and folder.is_dir() else None


def committed_rows() -> list[Row]:
    """Every row of the checkout's `results/` and of the zoo, each figure once."""
    folders = [folder for folder in (zoo.folder(), results_folder()) if folder is not None]
    return merged(row for folder in folders for row in read_folder(folder))


def read_folder(folder: Path) -> list[Row]:
    """The rows of every JSONL file in `folder` that holds result rows; files of timings are passed over."""
    return [row for path in sorted(folder.glob("*.jsonl")) if _holds_rows(path) for row in Store(path).read()]


def merged(rows: Iterable[Row]) -> list[Row]:
    """The rows in their order, the latest of those that measured the same figure."""
    kept: dict[str, Row] = {}
    for row in rows:
        if row.key not in kept or kept[row.key].provenance.date <= row.provenance.date:
            kept[row.key] = row
    return list(kept.values())


def _holds_rows(path: Path) -> bool:
    """Whether the first line is a result row: only these have a protocol. A line that cannot be read is `Store`'s."""
    with atomic.file_errors(path), path.open("rb") as file:
        first = file.readline()
    try:
        entry = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return isinstance(entry, dict) and "protocol" in entry
