"""Load any data set by name or path, and find published data sets under the data root."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from soap._files import atomic
from soap.data.dataset import Dataset, check_split, make_dataset
from soap.data.folder import load_folder
from soap.data.npz import load_npz
from soap.data.sources import MINI, MINI_NAME, SOURCES, DataFile, Source
from soap.errors import FileError, InputError, unknown


@dataclass(frozen=True, kw_only=True)
class Presence:
    """Whether a data set is on this machine: `counts` are examples per split, `missing` the files not in `folder`."""

    name: str
    folder: Path
    bundled: bool
    missing: tuple[str, ...]
    counts: dict[str, int]

    @property
    def present(self) -> bool:
        """Whether all its files are present."""
        return not self.missing


def load(name: str | Path, split: str = "test", *, root: Path | None = None) -> Dataset:
    """The data set `name` as float32 in [0, 1] on the CPU.

    `name` is "mnist", "cifar10", "cifar100" (read from the data root, see `soap.data.root`), "mnist-mini" (bundled), a
    folder of class folders, or an .npz file. A published data set with other content than published is an error.
    """
    check_split(split)
    if isinstance(name, str) and name in _named_sources():
        return _load_source(name, split, root)
    path = Path(name)
    with atomic.file_errors(path):
        is_folder, exists = path.is_dir(), path.exists()
    if is_folder:
        return load_folder(path, split)
    if path.suffix == ".npz":
        return load_npz(path, split)
    if exists:
        raise InputError(f"{path} is a file of another kind; expected a folder of class folders, or an .npz file.")
    if isinstance(name, Path) or len(path.parts) > 1:
        raise FileError(f"{path}: no such file or folder; expected a folder of class folders, or an .npz file.")
    raise unknown("data set", name, _named_sources())


def data_root(explicit: Path | None = None) -> Path:
    """The data folder: `explicit`, else $SOAP_DATA, else `soap` in the user's cache folder."""
    given = explicit or os.environ.get("SOAP_DATA")
    try:
        return Path(given).expanduser() if given else _user_cache() / "soap"
    except RuntimeError as error:
        raise FileError(f"{error} Give the data folder with --data-root or $SOAP_DATA.") from error


def status(root: Path | None = None) -> list[Presence]:
    """Every data set that can be loaded by name, present or not."""
    found = []
    for name, source in _named_sources().items():
        folder = source_folder(source, root)
        missing = tuple(file.name for file in source.files if find_file(file, folder) is None)
        found.append(
            Presence(name=name, folder=folder, bundled=source.bundled, missing=missing, counts=dict(source.counts))
        )
    return found


def known_source(name: str) -> Source:
    """The published data set of that name."""
    if name not in SOURCES:
        raise unknown("published data set", name, SOURCES)
    return SOURCES[name]


def find_file(file: DataFile, folder: Path) -> Path | None:
    """The path of `file` in `folder`; MNIST's files are also found gzipped, and with a dot before "idx"."""
    names = [file.name]
    if file.name.endswith("-ubyte"):
        dotted = file.name.replace("-idx", ".idx")
        names += [f"{file.name}.gz", dotted, f"{dotted}.gz"]
    with atomic.file_errors(folder):
        return next((path for name in names if (path := folder / name).is_file()), None)


def source_folder(source: Source, root: Path | None = None) -> Path:
    """The folder of a data set's files."""
    return Path(source.folder) if source.bundled else data_root(root) / source.folder


def _named_sources() -> dict[str, Source]:
    return {MINI_NAME: MINI, **SOURCES}


def _load_source(name: str, split: str, root: Path | None) -> Dataset:
    source = _named_sources()[name]
    folder = source_folder(source, root)
    paths = {file.name: find_file(file, folder) for file in source.files if file.split == split}
    again = "install the package again" if source.bundled else f"get it again with `soap data download {name}`"
    if missing := [file for file, path in paths.items() if path is None]:
        raise FileError(
            f"{name} is not in {folder}: missing {', '.join(missing)}. Get it with `soap data download {name}`, "
            f"or import local files with `soap data import {name} DIR`."
        )
    pixels, labels = source.read([path for path in paths.values() if path is not None])
    if len(pixels) != source.counts[split]:
        raise FileError(
            f"{name}/{split} in {folder} contains {len(pixels)} images; expected {source.counts[split]}. "
            f"A file is incomplete or of another data set; {again}."
        )
    data = make_dataset(name, split, pixels, labels, source.classes)
    expected = source.content.get(split, data.sha256)
    if data.sha256 != expected:
        raise FileError(
            f"{name}/{split} in {folder} has fingerprint {data.sha256}; expected {expected}. "
            f"A file is damaged; {again}."
        )
    return data


def _user_cache() -> Path:
    """The user's cache folder, by the convention of the operating system."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    variable, usual = ("LOCALAPPDATA", "AppData/Local") if sys.platform == "win32" else ("XDG_CACHE_HOME", ".cache")
    return Path(os.environ.get(variable) or Path.home() / usual)
