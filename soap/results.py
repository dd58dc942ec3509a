"""Result rows: one measured number, what it measures and where it came from; and the JSONL store that keeps them.

Rows are data; tables, plots and pages are views of them (`soap.report`). A row holds counts, never a bare percentage:
the interval follows from the counts.
"""

import hashlib
import io
import json
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from soap._files import atomic, checksums
from soap._files.records import read_record
from soap.errors import FileError
from soap.specs import AttackSpec, DefenceSpec, TrainingSpec

SCHEMA = 3
ACCURACY = "accuracy"

LOG = logging.getLogger("soap")

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Lone UTF-16 surrogates: JSON can hold them, UTF-8 cannot."""


def wilson(correct: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson 1927), which covers shares near 0 % and 100 % as well."""
    share = correct / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Weights, data, seed, versions and device of a measurement. training: of the weights; None where unknown."""

    weights_sha256: str
    data_sha256: str
    images: str
    seed: int
    batch_size: int
    version: str
    commit: str | None
    torch: str
    python: str
    device: str
    date: str
    training: TrainingSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A metric of one model under one attack behind one defence, by one protocol.

    metric: what `correct` of `n` counts; "accuracy" counts correctly classified images. measures: further means over
    the same images, e.g. the success rate of an L2 attack.
    """

    protocol: str
    model: str
    data: str
    attack: AttackSpec
    defence: DefenceSpec
    n: int
    correct: int
    seconds: float
    provenance: Provenance
    metric: str = ACCURACY
    measures: Mapping[str, float] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def training(self) -> TrainingSpec | None:
        """The training of the weights; None where unknown."""
        return self.provenance.training

    @property
    def accuracy(self) -> float:
        """Share of correctly classified images, in [0, 1]."""
        return self.correct / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy."""
        return wilson(self.correct, self.n)

    @property
    def key(self) -> str:
        """A hash of what was measured, without when, where and how fast: rows of the same measurement share it.

        The attack counts by its steps, not by the short name that a caller gave it.
        """
        attack, p = asdict(self.attack), self.provenance
        identity = [
            self.protocol, self.model, self.data, self.metric, attack["steps"], attack["against"],
            asdict(self.defence), self.n, p.weights_sha256, p.data_sha256, p.images, p.seed,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """The row as JSON values, with its key, accuracy and interval."""
        low, high = self.interval
        return {**asdict(self), "key": self.key, "accuracy": self.accuracy, "interval": [low, high]}


def from_json(content: Mapping[str, Any]) -> Row:
    """The row that `as_json` wrote; anything else raises ValueError."""
    if content.get("schema") != SCHEMA:
        raise ValueError(f"schema is {content.get('schema')!r}, expected {SCHEMA}; run tools/migrate_rows.py")
    try:
        row = read_record(Row, {each.name: content[each.name] for each in fields(Row)})
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a result row: {error}") from error
    if _SURROGATE.search(json.dumps(content, ensure_ascii=False, allow_nan=False)):
        raise ValueError("not a result row: it holds a lone surrogate")
    if not 0 <= row.correct <= row.n or row.n == 0:
        raise ValueError(f"{row.correct!r} correct of {row.n!r} is not a count")
    if content.get("key") != row.key:
        raise ValueError("the row was changed after it was written: its key does not fit")
    if content.get("accuracy", row.accuracy) != row.accuracy:
        raise ValueError("the row was changed after it was written: its accuracy does not fit")
    return row


def provenance_from_json(content: Mapping[str, Any]) -> Provenance:
    """The provenance that `asdict` wrote; anything else raises ValueError or TypeError."""
    return read_record(Provenance, content)


def defence_from_json(content: Mapping[str, Any]) -> DefenceSpec:
    """The defence that `asdict` wrote; anything else raises ValueError or TypeError."""
    return read_record(DefenceSpec, content)


class Store:
    """A JSONL file of rows, appended one by one, each line with its checksum.

    An incomplete last line is an interrupted write: reading skips it with a warning, the next append removes it. Any
    other invalid line raises FileError. Rows of older versions without a checksum are checked by key and accuracy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Row]:
        """All rows; an empty list where the file does not exist."""
        rows, _, torn = self._read()
        if torn:
            LOG.warning("%s: skipped the incomplete last line, an interrupted write.", self.path)
        return rows

    def append(self, row: Row) -> None:
        """Add a row at the end; it is on disk when this returns."""
        # Keys keep their order: that of settings is the order in which they are displayed.
        line = checksums.dumps(row.as_json()).encode() + b"\n"
        with atomic.file_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file, atomic.file_lock(file):  # several processes may append
                _, whole, torn = self._read()
                if torn:
                    LOG.warning("%s: removed the incomplete last line (%d bytes).", self.path, torn)
                file.truncate(whole)
                try:
                    _write_all(file, line)
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(whole)  # on a full disk, keep the earlier rows and no part of this one
                    raise
            if whole == 0:
                atomic.sync_folder(self.path.parent)

    def _read(self) -> tuple[list[Row], int, int]:
        """Rows, the bytes of complete lines, and the bytes of an incomplete line after them."""
        with atomic.file_errors(self.path):
            content = self.path.read_bytes() if self.path.exists() else b""
        whole = content.rfind(b"\n") + 1
        rows = []
        for number, line in enumerate(content[:whole].split(b"\n")[:-1], 1):
            try:
                rows.append(_row_of(line))
            except ValueError as error:
                raise FileError(
                    f"{self.path}, line {number}: {error}; fix or remove the line, or use another file."
                ) from error
        return rows, whole, len(content) - whole


@lru_cache(maxsize=4096)
def _row_of(line: bytes) -> Row:
    """The row of a line. Every append reads the whole file again, so lines that were checked before are remembered."""
    return from_json(checksums.loads(line))


def _write_all(file: io.FileIO, content: bytes) -> None:
    """Write everything: on a nearly full disk one call may write a part only."""
    while content:
        content = content[file.write(content) :]


class CombinedStore(Store):
    """A store that also reads rows kept elsewhere, so that they are not measured again."""

    def __init__(self, path: Path, elsewhere: Sequence[Row]) -> None:
        super().__init__(path)
        self.elsewhere = elsewhere

    def read(self) -> list[Row]:
        """All rows, those kept elsewhere first."""
        return [*self.elsewhere, *super().read()]
