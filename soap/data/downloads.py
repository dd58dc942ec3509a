"""Bringing a published data set into the data root: downloaded, or from files already on this machine.

Either way the files are checked first and then moved into place whole, so that the root never holds half a
file, and what was there before stays until its successor is ready.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soap.data.archive import unpack
from soap.data.checksum import checksum, verify
from soap.data.fetch import Progress, UnavailableError, fetch
from soap.data.location import find, known
from soap.data.location import root as data_root
from soap.data.sources import DataFile, Remote, Source
from soap.errors import FileError

# A file on this machine, and the published files it holds.
Parcel = tuple[Path, tuple[DataFile, ...]]


def download(
    name: str, *, root: Path | None = None, mirror: str | None = None, progress: Progress | None = None
) -> Path:
    """Download a published data set, unless it is there already, and return its folder.

    `mirror` is the address of a folder to use instead of the official ones; the checksums stay. An interrupted
    download goes on where it stopped when called again. `progress` is called with (file, bytes done, bytes in all).
    """
    source = known(name)
    folder = data_root(root) / source.folder
    mirrors = source.mirrors if mirror is None else (mirror.rstrip("/") + "/",)
    with _writing(folder):
        for remote in source.remotes:
            files = source.inside(remote)
            if all(_intact(file, folder, source) for file in files):
                continue
            packed = folder / remote.name
            _fetch_from_any(mirrors, name, remote, packed, progress)
            _place(folder, source, [(packed, files)])
            packed.unlink()
    return folder


def import_files(name: str, folder: Path, *, root: Path | None = None) -> Path:
    """Copy a published data set from `folder`, or from a folder in it, into the data root; returns its place.

    Files may be plain or gzipped, or still in their archive. All are checked before any is copied.
    """
    source = known(name)
    parcels = _gather(name, source, folder)
    for packed, files in parcels:
        archive = next((remote for remote in source.remotes if remote.is_archive and remote.name == packed.name), None)
        if archive is None:
            verify(packed, files[0], source)
        elif (got := checksum(packed, archive.checksum.partition(":")[0])) != archive.checksum:
            raise FileError(f"{packed}: has {got}; wanted {archive.checksum}. Get the archive again.")
    target = data_root(root) / source.folder
    with _writing(target):
        _place(target, source, parcels)
    return target


def _fetch_from_any(
    mirrors: tuple[str, ...], name: str, remote: Remote, target: Path, progress: Progress | None
) -> None:
    problems = []
    for mirror in mirrors:
        try:
            fetch(mirror + remote.name, remote, target, progress)
            return
        except UnavailableError as problem:
            problems.append(str(problem))
    raise FileError(
        f"could not download {name}. {' '.join(problems)} If you can get the files by other means, "
        f"give them with `soap data import {name} DIR`."
    )


def _gather(name: str, source: Source, folder: Path) -> list[Parcel]:
    """All files, or their archive, in `folder` or in one of the folders in it."""
    try:
        places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    except OSError as problem:
        raise FileError(
            f"cannot look into {folder}: {problem.strerror or problem}; wanted a folder with the files of {name}."
        ) from problem
    for place in places:
        found: list[Parcel] = [(path, (file,)) for file in source.files if (path := find(file, place)) is not None]
        if len(found) == len(source.files):
            return found
    for place in places:
        for remote in source.remotes:
            if remote.is_archive and (place / remote.name).is_file():
                return [(place / remote.name, source.files)]
    raise FileError(
        f"{folder} does not hold {name}; wanted {', '.join(file.name for file in source.files)}, "
        "all of them there or all in one folder in it."
    )


def _place(folder: Path, source: Source, parcels: list[Parcel]) -> None:
    """Unpack in a scratch folder beside the target, check, then rename into place."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as scratch:
        ready = Path(scratch)
        names = []
        for packed, files in parcels:
            unpack(packed, files, source, ready)
            for file in files:
                verify(ready / file.name, file, source)
                names.append(file.name)
        for name in names:
            (ready / name).replace(folder / name)


def _intact(file: DataFile, folder: Path, source: Source) -> bool:
    path = find(file, folder)
    if path is None:
        return False
    try:
        verify(path, file, source)
    except FileError:
        return False
    return True


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Make `folder`, and say clearly when it, or anything in it, cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except FileError:
        raise
    except OSError as problem:
        raise FileError(
            f"cannot write in {folder}: {problem.strerror or problem}. Make room or choose another folder "
            "with --data-root or $SOAP_DATA."
        ) from problem
