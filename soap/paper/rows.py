"""Result rows and timings that are committed, in `results/` and beside bundled weights; facts of a row's training."""

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


def training_epochs(row: Row) -> int | None:
    """Number of epochs that the row's network was trained for; None if the row does not record it."""
    return None if row.training is None else row.training.epochs


def training_seed(row: Row) -> int:
    """Seed of the training behind a row; 0 if it is not recorded, which is the seed of the bundled weights."""
    return 0 if row.training is None else row.training.seed


def attack_radius(row: Row) -> float:
    """eps of the row's attack; 0 for an attack without one."""
    return float(row.attack.steps[0].settings.get("eps", 0.0))
