"""A run on disk: what was planned, every attacked batch as soon as it is done, facts, and rows.

    run.json                     the plan and its provenance; a run goes on only with the same plan
    clean/0000.npz               a batch of the images as they are: what defence and classifier say
    attempts/03/0000.npz         the fourth attempt on the first batch: rows, attacked images, what both say
    facts/NAME.json              what a probe found, for the checks
    rows.jsonl                   one result row for each protocol, and the worst case

Files are written whole or not at all, so a run that was killed goes on where it stood and ends with the same bits.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from soap import files
from soap.errors import FileError, InputError

PLAN = "run.json"
ROWS = "rows.jsonl"
SCHEMA = "soap-run/1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked:
    """A batch after an attempt: which images of the run, the attacked ones, what defence and classifier say of them."""

    rows: npt.NDArray[np.int64]
    x: npt.NDArray[np.float32]
    defended: npt.NDArray[np.int64]
    bare: npt.NDArray[np.int64]
    seconds: float


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rows(self) -> Path:
        """The store of result rows."""
        return self.path / ROWS

    def plan(self) -> dict[str, Any]:
        """What run.json holds."""
        path = self.path / PLAN
        with files.explained(path):
            text = path.read_text(encoding="utf-8")
        try:
            content = json.loads(text)
            if not isinstance(content, dict) or content.get("schema") != SCHEMA:
                raise ValueError(f"it is not a plan of schema {SCHEMA}")
        except ValueError as error:
            raise FileError(f"{path}: {error}; name the folder of a run of `soap evaluate --suite`.") from error
        return content

    def begin(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Write the plan, or check that the one here is the same but for who, when and where; the one that counts."""
        if not (self.path / PLAN).exists():
            files.write_text(self.path / PLAN, json.dumps({"schema": SCHEMA, **plan}, indent=1, sort_keys=True) + "\n")
        there = self.plan()
        for key, wanted in json.loads(json.dumps(plan)).items():
            if key != "provenance" and there.get(key) != wanted:
                raise InputError(
                    f"{self.path} holds another run: its {key} is {_short(there.get(key))}, now {_short(wanted)} is "
                    "wanted. Name another folder, or repeat the command that began it."
                )
        return there

    def batch(self, attempt: int | None, number: int) -> Attacked | None:
        """A batch that was done; None where it was not. attempt: None for the images as they are."""
        path = self._batch_path(attempt, number)
        if not path.exists():
            return None
        with files.explained(path), path.open("rb") as file:
            try:
                with np.load(file, allow_pickle=False) as archive:
                    names = ("rows", "x", "defended", "bare")
                    return Attacked(**{name: archive[name] for name in names}, seconds=float(archive["seconds"]))
            except Exception as problem:  # numpy and zipfile meet damage with many kinds of exception
                raise FileError(f"{path}: cannot be read ({problem}); remove it and run the suite again.") from problem

    def keep(self, attempt: int | None, number: int, batch: Attacked) -> None:
        """Write a batch."""
        with files.replacing(self._batch_path(attempt, number)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file, rows=batch.rows, x=batch.x, defended=batch.defended, bare=batch.bare, seconds=batch.seconds
            )

    def fact(self, name: str) -> Any | None:
        """What a probe found; None where it was not made."""
        path = self.path / "facts" / f"{name}.json"
        if not path.exists():
            return None
        with files.explained(path):
            text = path.read_text(encoding="utf-8")
        try:
            return json.loads(text)
        except ValueError as error:
            raise FileError(f"{path}: {error}; remove it and run the suite again.") from error

    def note(self, name: str, found: Any) -> None:
        """Write what a probe found."""
        files.write_text(self.path / "facts" / f"{name}.json", json.dumps(found, indent=1, allow_nan=False) + "\n")

    def _batch_path(self, attempt: int | None, number: int) -> Path:
        folder = "clean" if attempt is None else f"attempts/{attempt:02d}"
        return self.path / folder / f"{number:04d}.npz"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
