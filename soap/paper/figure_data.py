"""The data that figures are drawn from, on disk: one dataclass in one .npz file, with provenance and without code.

Array fields are arrays of the file; all other fields are one JSON text beside them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from soap._files import atomic
from soap.data.npz import read_arrays
from soap.errors import FileError
from soap.results import Row

SCHEMA = "soap-gathered/1"
ABOUT = "about"
"""The array that holds the JSON text, as bytes."""
RENAMED_FIELDS = {"answers": "predictions"}
"""Field names of older files."""

FigureRecord = TypeVar("FigureRecord")


@dataclass(frozen=True, kw_only=True)
class FigureData:
    """All that figures are drawn from: a folder of .npz files, result rows, and timings of `soap bench`."""

    folder: Path
    rows: Sequence[Row] = field(default=(), repr=False)
    timings: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def find(self, kind: type[FigureRecord], name: str) -> FigureRecord | None:
        """The record of a model or data set; None if there is no such file."""
        path = self.folder / file_name(kind, name)
        return read(path, kind) if path.exists() else None


def file_name(kind: type, name: str) -> str:
    """Name of the file of a record of a model or data set, such as "curve-mnist-fcn-dr.npz"."""
    return f"{kind.file_prefix}-{name}.npz"  # type: ignore[attr-defined]


def save(path: Path, record: Any) -> None:
    """Write a frozen dataclass whose fields are arrays, numbers, texts, tuples and mappings of these."""
    content = {field.name: getattr(record, field.name) for field in fields(record)}
    arrays: dict[str, Any] = {name: value for name, value in content.items() if isinstance(value, np.ndarray)}
    facts = {name: value for name, value in content.items() if name not in arrays}
    about = json.dumps({"schema": SCHEMA, "kind": type(record).__name__, "facts": facts}, sort_keys=True)
    arrays[ABOUT] = np.frombuffer(about.encode(), np.uint8)
    with atomic.replace_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read(path: Path, kind: type[FigureRecord]) -> FigureRecord:
    """The dataclass that `save` wrote; FileError for a file of another kind or a damaged one."""
    with atomic.file_errors(path), path.open("rb") as file:
        # numpy and zipfile raise many kinds of exception for pickles and damage (ValueError, BadZipFile ...).
        try:
            _, arrays = read_arrays(file)
            about = json.loads(arrays.pop(ABOUT).tobytes())
            if (about["schema"], about["kind"]) != (SCHEMA, kind.__name__):
                raise ValueError(f"it is {about['kind']} of {about['schema']}")
            facts = {RENAMED_FIELDS.get(name, name): _tuples(value) for name, value in about["facts"].items()}
            return kind(**arrays, **facts)
        except Exception as problem:
            raise FileError(
                f"{path}: cannot be read as {kind.__name__} of {SCHEMA} ({problem}); remove it, and `soap reproduce "
                "NAME --run` makes it again."
            ) from problem


def _tuples(value: Any) -> Any:
    """Lists of JSON as tuples, which a frozen dataclass holds."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
