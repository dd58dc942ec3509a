"""The folder of a suite run: its plan, every attacked batch, facts of the checks, and rows.

    run.json                     the plan and its provenance; a run resumes only with the same plan
    clean/0000.npz               the predictions of defence and classifier on a batch of clean images
    attempts/03/0000.npz         the fourth attempt on the first batch: attacked images and predictions
    facts/NAME.json              what a check measured
    rows.jsonl                   one result row for each protocol, and the worst case
    seal.json                    a fingerprint of every batch of a finished run

The folder of a shard has the plan of the whole run and the batches of its part; its run.json names the shard.

Files are written atomically, so a killed run resumes and ends with the same bits. Each file carries a checksum of its
bytes: a damaged file raises FileError.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from soap._files import atomic, checksums
from soap._files.records import fits
from soap.data import Dataset
from soap.data.npz import read_arrays
from soap.errors import FileError, InputError
from soap.evaluation.cascade import ORDER_FACT
from soap.results import defence_from_json, provenance_from_json

PLAN, ROWS, FINGERPRINTS = "run.json", "rows.jsonl", "seal.json"
SCHEMA = "soap-run/4"
CONTINUED = "continued"
"""The fact that names versions and devices that resumed the run."""

CLASSIFIER = "classifier"
"""The fact that holds the checksum of the classifier's own weights, which a model card states, too."""

MAKERS = ("version", "commit", "torch", "python", "device")
"""The part of a provenance that may change the result."""

_COMMENT = json.dumps({checksums.CHECKSUM_FIELD: checksums.ZERO_CHECKSUM}).encode()
"""The comment at the end of an archive, which holds its checksum."""

_PLAN_TYPES: dict[str, Any] = {
    "target.name": str, "target.defence": dict, "threat.eps": float, "threat.norm": str, "suite": str,
    "data.name": str, "data.split": str, "data.n": int, "data.sha256": str, "classes": list, "attempts": list,
    "left_out": dict, "separable": bool, "purifies": bool, "random": bool, "exact": bool, "gradient": str, "draws": int,
    "batch_size": int, "seed": int, "weights_sha256": str,
    "provenance": dict,
}  # fmt: skip
_ATTEMPT_TYPES = {"protocol": str, "name": str, "attack": dict}


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackedBatch:
    """A batch after an attempt. rows: its images' numbers in the run; x: the attacked images.

    defended, bare: the labels that defence and classifier predict for `x`. drawn: the labels of a random defence by
    draw (see `soap.evaluation.labels`); empty for a deterministic one.
    """

    rows: npt.NDArray[np.int64]
    x: npt.NDArray[np.float32]
    defended: npt.NDArray[np.int64]
    bare: npt.NDArray[np.int64]
    seconds: float
    drawn: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._plan: dict[str, Any] | None = None

    @property
    def rows(self) -> Path:
        """The store of result rows."""
        return self.path / ROWS

    def plan(self) -> dict[str, Any]:
        """The content of run.json; it is read once."""
        if self._plan is None:
            path = self.path / PLAN
            content = checksums.read_json(path, "give the folder of a run of `soap evaluate --suite`")
            if content.get("schema") != SCHEMA:
                raise FileError(
                    f"{path}: schema is {content.get('schema')!r}, expected {SCHEMA!r}; give the folder of a run of "
                    "`soap evaluate --suite` (tools/migrate_rows.py and then tools/migrate_runs.py convert older ones)."
                )
            self._plan = content
        return self._plan

    def begin(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Write the plan of a new run, or check that the run in the folder has the same plan; return the stored one.

        Provenance may differ: a run may be resumed elsewhere.
        """
        for place in (self.path, *self.path.glob("*/"), *self.path.glob("attempts/*/")):
            atomic.remove_temporary_files(place)
        if not (self.path / PLAN).exists():
            checksums.write_json(self.path / PLAN, {"schema": SCHEMA, **plan})
        there = self.plan()
        for key, wanted in {"shard": None, "cascade": None, **json.loads(json.dumps(plan))}.items():
            if key != "provenance" and there.get(key) != wanted:
                raise InputError(
                    f"{self.path} holds another run: its {key} is {there.get(key)!r:.80}, expected {wanted!r:.80}. "
                    "Give another folder, or repeat the command of the run."
                )
        return there

    def note_continuation(self, provenance: Mapping[str, Any]) -> None:
        """Store the versions and the device that resume an unfinished run, where they are new."""
        began, now = ({name: of[name] for name in MAKERS} for of in (self.plan()["provenance"], provenance))
        earlier = (self.read_fact(CONTINUED) or {"by": []})["by"]
        if now not in (began, *earlier):
            self.write_fact(CONTINUED, {"by": [*earlier, now]})

    def read_batch(self, attempt: int | None, number: int) -> AttackedBatch | None:
        """A stored batch; None where it is missing. attempt: None for clean images."""
        path = self._batch_path(attempt, number)
        if not path.exists():
            return None
        with atomic.file_errors(path):
            content = path.read_bytes()
        try:
            _check_archive(content)
            _, arrays = read_arrays(io.BytesIO(content))
            names = ["rows", "x", "defended", "bare", *(["drawn"] if "drawn" in arrays else [])]
            return AttackedBatch(**{name: arrays[name] for name in names}, seconds=float(arrays["seconds"]))
        except Exception as problem:  # numpy and zipfile raise many kinds of exception for damaged files
            raise FileError(f"{path}: cannot be read ({problem}); remove it and run the suite again.") from problem

    def write_batch(self, attempt: int | None, number: int, batch: AttackedBatch) -> None:
        """Write a batch."""
        memory = io.BytesIO()
        arrays = {name: value for name, value in vars(batch).items() if name != "drawn" or value.size}
        np.savez_compressed(memory, **arrays)
        with zipfile.ZipFile(memory, "a") as archive:
            archive.comment = _COMMENT
        with atomic.replace_file(self._batch_path(attempt, number)) as temporary:
            temporary.write_bytes(checksums.with_checksum(memory.getvalue()))

    def read_fact(self, name: str) -> dict[str, Any] | None:
        """A stored fact; None where it is missing."""
        return self._read_json(f"facts/{name}.json")

    def write_fact(self, name: str, found: Mapping[str, Any]) -> None:
        """Write a fact."""
        checksums.write_json(self.path / "facts" / f"{name}.json", found, allow_nan=False)

    def weights_text(self, digits: int = 64) -> str:
        """The checksum of the classifier's weights, or of the whole defence where the run does not state it."""
        own = self.read_fact(CLASSIFIER)
        of_defence = f"{self.plan()['provenance']['weights_sha256'][:digits]} of the whole defence"
        return of_defence if own is None else str(own["weights_sha256"][:digits])

    def read_fingerprints(self) -> Mapping[str, str] | None:
        """The fingerprints of the batches of a finished run; None where the run is not finished."""
        return self._read_json(FINGERPRINTS)

    def write_fingerprints(self, found: Mapping[str, str]) -> None:
        """Write the fingerprints of a finished run; existing ones stay, so that later changes are noticed."""
        if not (self.path / FINGERPRINTS).exists():
            checksums.write_json(self.path / FINGERPRINTS, found)

    def changed_batches(self, found: Mapping[str, str]) -> list[str]:
        """Names of the batches whose fingerprints differ from those of the finished run."""
        seal = self.read_fingerprints() or {}
        return sorted(name for name in {*seal, *found} if seal.get(name) != found.get(name))

    def batch_numbers(self) -> range:
        """The numbers of the batches of images: all, or those of the shard."""
        content = self.plan()
        batches, part = -(-int(content["data"]["n"]) // int(content["batch_size"])), content.get("shard")
        return range(batches) if part is None else shard_batches(batches, part["index"], part["count"])

    def batch_names(self) -> Iterator[tuple[str, int | None, int]]:
        """(name, attempt, number) of every batch in the order of the run, clean images first (attempt None)."""
        order, numbers = self.plan().get("cascade"), self.batch_numbers()
        yield from _named((None,), numbers)
        if order is None:
            yield from _named(range(len(self.plan()["attempts"])), numbers)
            return
        has_first = int(numbers.start == 0)
        yield from _named(order, numbers[:has_first])
        yield from _named(self._learned_order() or order, numbers[has_first:])

    def _learned_order(self) -> list[int]:
        """The order of the attempts of a cascade on all batches but the first; empty before it is known."""
        found = self.read_fact(ORDER_FACT)
        if found is None:
            return []
        order: Any = found.get("attempts")
        if not _is_order(order, len(self.plan()["attempts"])):
            place = self.path / "facts" / f"{ORDER_FACT}.json"
            raise FileError(f"{place}: it does not name every attempt once; remove it and run the suite again.")
        return list(order)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        return checksums.read_json(path, "remove it and run the suite again") if path.exists() else None

    def _batch_path(self, attempt: int | None, number: int) -> Path:
        return self.path / f"{batch_name(attempt, number)}.npz"


def shard_batches(batches: int, index: int, count: int) -> range:
    """The batches of one of `count` shards, counted from 0: contiguous parts whose sizes differ by at most one."""
    return range(index * batches // count, (index + 1) * batches // count)


def _named(attempts: Iterable[int | None], numbers: range) -> Iterator[tuple[str, int | None, int]]:
    for attempt in attempts:
        for number in numbers:
            yield batch_name(attempt, number), attempt, number


def batch_name(attempt: int | None, number: int) -> str:
    """The name of a batch in the folder, without the suffix of its file."""
    return f"{'clean' if attempt is None else f'attempts/{attempt:02d}'}/{number:04d}"


def batch_fingerprint(batch: AttackedBatch) -> str:
    """sha256 over the arrays of a batch, without the seconds: a resumed run has the same fingerprints."""
    digest = hashlib.sha256()
    arrays: list[npt.NDArray[Any]] = [batch.rows, batch.x, batch.defended, batch.bare]
    for array in arrays + ([batch.drawn] if batch.drawn.size else []):
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def open_run(out: Path, *, part: bool = False) -> RunFolder:
    """The run in `out`, with a valid plan; FileError otherwise. part: whether it may be a shard."""
    folder = RunFolder(out)
    if wrong := _invalid_entry(folder.plan()):
        raise FileError(f"{out / PLAN}: its {wrong} is not valid; run the suite again in another folder.")
    if not part and (shard := folder.plan().get("shard")) is not None:
        raise InputError(
            f"{out} is shard {shard['index']} of {shard['count']}, expected a whole run; merge all shards with "
            "`soap merge`, then give the merged run."
        )
    return folder


def open_run_on(out: Path, data: Dataset) -> RunFolder:
    """The run in `out`; InputError unless it ran on `data`."""
    folder = open_run(out)
    wanted = folder.plan()["data"]
    if wanted["sha256"] != data.sha256 or wanted["n"] != len(data):
        raise InputError(
            f"{out} is a run on {wanted['n']:,} images of {wanted['name']}/{wanted['split']} with fingerprint "
            f"{wanted['sha256'][:12]}, got {len(data):,} of {data.name}/{data.split} with {data.sha256[:12]}; "
            "give the data of the run."
        )
    return folder


def batch_fits(batch: AttackedBatch, data: Dataset, *, attacked: bool) -> bool:
    """Whether the arrays of a batch fit the data and each other. attacked: whether it holds attacked images."""
    rows, labels = batch.rows, (batch.defended, batch.bare)
    if batch.drawn.size and (len(batch.drawn) != len(rows) or not np.issubdtype(batch.drawn.dtype, np.integer)):
        return False
    whole = rows.ndim == 1 and all(np.issubdtype(array.dtype, np.integer) for array in (rows, *labels))
    if not whole or any(array.shape != rows.shape for array in labels):
        return False
    if len(np.unique(rows)) != len(rows) or not ((rows >= 0) & (rows < len(data))).all():
        return False
    return not attacked or (batch.x.dtype == np.float32 and batch.x.shape == (len(rows), *data.x.shape[1:]))


def _invalid_entry(plan: Mapping[str, Any]) -> str:
    """The first entry of a plan that is missing or of another type; empty where all are valid."""
    types = dict(_PLAN_TYPES)
    for number in range(len(plan["attempts"]) if isinstance(plan.get("attempts"), list) else 0):
        types |= {f"attempts.{number}.{name}": kind for name, kind in _ATTEMPT_TYPES.items()}
    for path, kind in types.items():
        value: Any = plan
        for key in path.split("."):
            value = value[int(key)] if isinstance(value, list) else value.get(key) if isinstance(value, dict) else None
        if not fits(value, kind):
            return path
    if plan["batch_size"] < 1 or plan["data"]["n"] < 1:
        return "batch_size" if plan["batch_size"] < 1 else "data.n"
    if "cascade" in plan and not _is_order(plan["cascade"], len(plan["attempts"])):
        return "cascade"
    if "shard" in plan and not _valid_shard(plan["shard"]):
        return "shard"
    try:
        defence_from_json(plan["target"]["defence"])
        provenance_from_json(plan["provenance"])
    except (TypeError, ValueError) as error:
        return f"target.defence or provenance ({error})"
    return ""


def _is_order(order: Any, count: int) -> bool:
    """Whether the numbers of `count` attempts are in `order`, each once."""
    return fits(order, list) and sorted(map(repr, order)) == sorted(map(repr, range(count)))


def _valid_shard(shard: Any) -> bool:
    """Whether a plan's shard has an index below its count."""
    if not isinstance(shard, dict):
        return False
    index, count = shard.get("index", -1), shard.get("count", -1)
    return fits(index, int) and fits(count, int) and 0 <= index < count


def _check_archive(content: bytes) -> None:
    """Raise unless the archive is intact; archives of older versions have no comment and rely on their CRCs."""
    if content[-22:-18] == b"PK\x05\x06" and content.endswith(b"\0\0"):
        return
    checksums.verify(content, json.loads(content[-len(_COMMENT) :]))
