"""A run on disk: what was planned, every attacked batch as soon as it is done, facts, and rows.

    run.json                     the plan and its provenance; a run goes on only with the same plan
    clean/0000.npz               a batch of the images as they are: what defence and classifier say
    attempts/03/0000.npz         the fourth attempt on the first batch: rows, attacked images, what both say
    facts/NAME.json              what a probe found, for the checks
    rows.jsonl                   one result row for each protocol, and the worst case

Files are written whole or not at all, so a run that was killed goes on where it stood and ends with the same bits.
Each carries a checksum of its own bytes: one that was damaged is named, and never used.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from soap._files import atomic, checksums
from soap.data.arrays import read_arrays
from soap.errors import FileError, InputError

PLAN = "run.json"
ROWS = "rows.jsonl"
SCHEMA = "soap-run/1"
CONTINUED = "continued"
MAKERS = ("version", "commit", "torch", "python", "device")
"""Of a provenance, what made the figures."""

_COMMENT = json.dumps({checksums.FIELD: checksums.BLANK}).encode()
"""The comment at the end of an archive, which holds its checksum."""


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
        content = checksums.read(path, "name the folder of a run of `soap evaluate --suite`")
        if content.get("schema") != SCHEMA:
            raise FileError(
                f"{path}: it is not a plan of schema {SCHEMA}; name the folder of a run of `soap evaluate --suite`."
            )
        return content

    def begin(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Write the plan, or check that the one here is the same but for who, when and where; the one that counts."""
        for place in (self.path, *self.path.glob("*/"), *self.path.glob("attempts/*/")):
            atomic.remove_unfinished(place)
        if not (self.path / PLAN).exists():
            checksums.write(self.path / PLAN, {"schema": SCHEMA, **plan}, sort_keys=True)
        there = self.plan()
        for key, wanted in json.loads(json.dumps(plan)).items():
            if key != "provenance" and there.get(key) != wanted:
                raise InputError(
                    f"{self.path} holds another run: its {key} is {_short(there.get(key))}, now {_short(wanted)} is "
                    "wanted. Name another folder, or repeat the command that began it."
                )
        return there

    def go_on(self, provenance: Mapping[str, Any]) -> None:
        """Note who goes on with an unfinished run, where that is not who began it or went on before."""
        now = {name: provenance[name] for name in MAKERS}
        found = self.fact(CONTINUED) or {"by": []}
        began = self.plan()["provenance"]
        if now != {name: began[name] for name in MAKERS} and now not in found["by"]:
            self.note(CONTINUED, {"by": [*found["by"], now]})

    def batch(self, attempt: int | None, number: int) -> Attacked | None:
        """A batch that was done; None where it was not. attempt: None for the images as they are."""
        path = self._batch_path(attempt, number)
        if not path.exists():
            return None
        with atomic.explained(path):
            content = path.read_bytes()
        try:
            _check_archive(content)
            _, arrays = read_arrays(io.BytesIO(content))
            names = ("rows", "x", "defended", "bare")
            return Attacked(**{name: arrays[name] for name in names}, seconds=float(arrays["seconds"]))
        except Exception as problem:  # numpy and zipfile meet damage with many kinds of exception
            raise FileError(f"{path}: cannot be read ({problem}); remove it and run the suite again.") from problem

    def keep(self, attempt: int | None, number: int, batch: Attacked) -> None:
        """Write a batch."""
        memory = io.BytesIO()
        np.savez_compressed(
            memory, rows=batch.rows, x=batch.x, defended=batch.defended, bare=batch.bare, seconds=batch.seconds
        )
        with zipfile.ZipFile(memory, "a") as archive:
            archive.comment = _COMMENT
        with atomic.replacing(self._batch_path(attempt, number)) as temporary:
            temporary.write_bytes(checksums.filled(memory.getvalue()))

    def fact(self, name: str) -> dict[str, Any] | None:
        """What a probe found; None where it was not made."""
        path = self.path / "facts" / f"{name}.json"
        if not path.exists():
            return None
        return checksums.read(path, "remove it and run the suite again")

    def note(self, name: str, found: Mapping[str, Any]) -> None:
        """Write what a probe found."""
        checksums.write(self.path / "facts" / f"{name}.json", found, allow_nan=False)

    def _batch_path(self, attempt: int | None, number: int) -> Path:
        folder = "clean" if attempt is None else f"attempts/{attempt:02d}"
        return self.path / folder / f"{number:04d}.npz"


def _check_archive(content: bytes) -> None:
    """Raise unless the archive is as it was written; those of before, without a comment, are left to their CRCs."""
    if content[-22:-18] == b"PK\x05\x06" and content.endswith(b"\0\0"):
        return
    checksums.check(content, json.loads(content[-len(_COMMENT) :]))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
