"""One measured figure and where it came from, and the JSONL store that keeps them.

Results are data; tables, plots and pages are views of them. A row never holds a bare percentage: it has the
counts, and the interval follows from them.
"""

import hashlib
import io
import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from soap._files import atomic, checksums
from soap.errors import FileError

SCHEMA = 1

LOG = logging.getLogger("soap")

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Halves of letters: JSON can hold them, no text file can."""


def wilson(correct: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson 1927): honest at 0 % and 100 % too."""
    share = correct / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What else would have to be the same for the figure to come out the same.

    training: how the weights were made, e.g. "200 epochs, seed 0, fp32"; empty where it is not known.
    """

    weights_sha256: str
    data_sha256: str
    images: str
    seed: int
    batch: int
    version: str
    commit: str | None
    torch: str
    python: str
    device: str
    date: str
    training: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Accuracy of one model under one attack behind one defence, by one protocol.

    defence: the purifier's repr, or "none" for the bare classifier. eps_pfy: how its radius was chosen.
    measures: further means over the same images, e.g. the success rate of an L2 attack.
    """

    protocol: str
    model: str
    data: str
    attack: str
    settings: str
    eps_pfy: str
    defence: str
    n: int
    correct: int
    seconds: float
    provenance: Provenance
    measures: Mapping[str, float] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def accuracy(self) -> float:
        """Share classified rightly, in [0, 1]."""
        return self.correct / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % Wilson interval."""
        return wilson(self.correct, self.n)

    @property
    def key(self) -> str:
        """What was measured, apart from when, where and how fast: rows with equal keys are the same figure."""
        p = self.provenance
        parts = (self.protocol, self.model, self.data, self.settings, self.eps_pfy, self.defence, self.n)
        identity = json.dumps([*parts, p.weights_sha256, p.data_sha256, p.images, p.seed])
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """The row for machines, with accuracy and interval spelled out."""
        low, high = self.interval
        return {**asdict(self), "key": self.key, "accuracy": self.accuracy, "interval": [low, high]}


def from_json(content: Mapping[str, Any]) -> Row:
    """The row that `as_json` wrote; anything else is a ValueError."""
    if content.get("schema") != SCHEMA:
        raise ValueError(f"schema {content.get('schema')!r}, want {SCHEMA}")
    try:
        provenance = Provenance(**content["provenance"])
        row = Row(**{**{f.name: content[f.name] for f in fields(Row)}, "provenance": provenance})
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a result row: {error}") from error
    _check_types(row)
    if not 0 <= row.correct <= row.n or row.n == 0:
        raise ValueError(f"{row.correct!r} right of {row.n!r} is not a count")
    if content.get("key") != row.key:
        raise ValueError("the row was changed after it was written: its key does not fit")
    if content.get("accuracy", row.accuracy) != row.accuracy:
        raise ValueError("the row was changed after it was written: its accuracy does not fit")
    return row


def _check_types(row: Row) -> None:
    """Raise a ValueError unless every field is of its type: texts that can be written, numbers that are finite."""
    for record in (row, row.provenance):
        for each in fields(record):
            value = getattr(record, each.name)
            if not _is(value, each.type):
                raise ValueError(f"its {each.name} is {value!r:.60}")
    if not isinstance(row.measures, dict) or not all(_is(value, float) for value in row.measures.values()):
        raise ValueError("its measures are not numbers by name")


def _is(value: Any, wanted: Any) -> bool:
    if value is None:
        return bool(wanted == str | None)
    if wanted in (str, str | None):
        return isinstance(value, str) and not _SURROGATE.search(value)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return True


class Store:
    """A JSONL file of rows: appended one by one, each with a checksum of its line; read whole.

    A last line without its newline is a write that was cut off: it is left out, the log says so, and the next append
    removes it. Any other line that is not a row, or not as it was written, is an error that names it. Rows of before,
    without a checksum, are held to their key and accuracy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Row]:
        """All rows; none where the file does not exist yet."""
        rows, _, torn = self._read()
        if torn:
            LOG.warning("%s: its last line was cut off while it was written; it is left out.", self.path)
        return rows

    def append(self, row: Row) -> None:
        """Add a row at the end, on disk before this returns."""
        line = checksums.dumps(row.as_json(), sort_keys=True).encode() + b"\n"
        with atomic.file_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file, atomic.file_lock(file):  # others may write to it, too
                _, whole, torn = self._read()
                if torn:
                    told = "%s: its last line was cut off while it was written; %d bytes removed."
                    LOG.warning(told, self.path, torn)
                file.truncate(whole)
                try:
                    _write_all(file, line)
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(whole)  # a full disk leaves the rows before it, and no part of this one
                    raise
            if whole == 0:
                atomic.sync_folder(self.path.parent)

    def _read(self) -> tuple[list[Row], int, int]:
        """Rows, the length in bytes of the lines that hold them, and that of a torn one after them."""
        with atomic.file_errors(self.path):
            content = self.path.read_bytes() if self.path.exists() else b""
        whole = content.rfind(b"\n") + 1
        rows = []
        for number, line in enumerate(content[:whole].split(b"\n")[:-1], 1):
            try:
                rows.append(from_json(checksums.loads(line)))
            except ValueError as error:
                raise FileError(
                    f"{self.path}, line {number}: {error}; mend or remove the line, or use another file."
                ) from error
        return rows, whole, len(content) - whole


def _write_all(file: io.FileIO, content: bytes) -> None:
    """All of it: one call may write a part where the disk is nearly full."""
    while content:
        content = content[file.write(content) :]


class Ledger(Store):
    """A store that knows rows kept elsewhere, too, so that they are not measured again."""

    def __init__(self, path: Path, elsewhere: Sequence[Row]) -> None:
        super().__init__(path)
        self.elsewhere = elsewhere

    def read(self) -> list[Row]:
        """All rows, those kept elsewhere first."""
        return [*self.elsewhere, *super().read()]
