"""Where data sets live on this machine, and which are there."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from soap.data import mini
from soap.data.sources import SOURCES, DataFile, Source
from soap.errors import FileError, unknown


@dataclass(frozen=True, kw_only=True)
class Presence:
    """What is known of one data set: `counts` are examples per split, `missing` the files not in `folder`."""

    name: str
    folder: Path
    bundled: bool
    missing: tuple[str, ...]
    counts: dict[str, int]

    @property
    def present(self) -> bool:
        """Whether `load` would find all its files."""
        return not self.missing


def root(explicit: Path | None = None) -> Path:
    """The data folder: `explicit`, else $SOAP_DATA, else `soap` in the user's cache folder."""
    named = explicit or os.environ.get("SOAP_DATA")
    try:
        return Path(named).expanduser() if named else _cache() / "soap"
    except RuntimeError as problem:
        raise FileError(f"{problem} Say where data lives with --data-root or $SOAP_DATA.") from problem


def status(root: Path | None = None) -> list[Presence]:
    """Every data set that can be loaded by name, present or not."""
    bundled = Presence(name=mini.NAME, folder=mini.folder(), bundled=True, missing=(), counts=dict(mini.COUNTS))
    return [bundled, *(_presence(name, source, root) for name, source in SOURCES.items())]


def known(name: str) -> Source:
    """The published data set of that name."""
    if name not in SOURCES:
        raise unknown("published data set", name, SOURCES)
    return SOURCES[name]


def spellings(file: DataFile) -> tuple[str, ...]:
    """The names under which a file may lie: MNIST's are also found gzipped, and with a dot before "idx"."""
    if not file.name.endswith("-ubyte"):
        return (file.name,)
    dotted = file.name.replace("-idx", ".idx")
    return (file.name, f"{file.name}.gz", dotted, f"{dotted}.gz")


def find(file: DataFile, folder: Path) -> Path | None:
    """The path of `file` in `folder` under any of its spellings."""
    try:
        return next((path for name in spellings(file) if (path := folder / name).is_file()), None)
    except OSError as problem:
        raise FileError(f"cannot look into {folder}: {problem.strerror or problem}.") from problem


def locate(name: str, split: str, data_root: Path) -> list[Path]:
    """The files of one split, in their published order."""
    source = known(name)
    folder = data_root / source.folder
    paths = {file.name: find(file, folder) for file in source.files if file.split == split}
    missing = [file for file, path in paths.items() if path is None]
    if missing:
        raise FileError(
            f"{name} is not in {folder}: missing {', '.join(missing)}. Get it with `soap data download {name}`, "
            f"or give files you have with `soap data import {name} DIR`."
        )
    return [path for path in paths.values() if path is not None]


def _cache() -> Path:
    """The user's cache folder, by the custom of the system."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    variable, usual = ("LOCALAPPDATA", "AppData/Local") if sys.platform == "win32" else ("XDG_CACHE_HOME", ".cache")
    return Path(os.environ.get(variable) or Path.home() / usual)


def _presence(name: str, source: Source, data_root: Path | None) -> Presence:
    folder = root(data_root) / source.folder
    missing = tuple(file.name for file in source.files if find(file, folder) is None)
    return Presence(name=name, folder=folder, bundled=False, missing=missing, counts=dict(source.counts))
