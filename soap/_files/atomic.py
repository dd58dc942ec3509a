"""Write files atomically: a reader sees the old content or the new, never a part of it."""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO

from soap.errors import FileError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

TEMPORARY_SUFFIX = ".unfinished"
"""End of the names of temporary files."""


@contextmanager
def replace_file(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """Yield a temporary file that replaces `path`, synced to disk, when the block ends without an error.

    previous: a second path that keeps the old content. `path` always has the old content or the new.
    """
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY_SUFFIX)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.chmod(0o644)
            if previous is not None and path.exists():
                copy(path, previous)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def copy(path: Path, to: Path) -> None:
    """Copy a file by a hard link if possible, replacing `to`; a later replacement of one does not change the other."""
    with replace_file(to) as temporary:
        temporary.unlink()
        try:
            os.link(path, temporary)
        except OSError:  # the file system has no hard links
            shutil.copyfile(path, temporary)


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files that killed writers left in the folder; call it when no other process writes there."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with file_errors(path):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def file_lock(file: IO[bytes]) -> Iterator[None]:
    """Hold an exclusive lock of the file among processes; does nothing on systems without file locks."""
    if fcntl is not None:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)  # closing the file releases the lock
    yield


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Create the folder if missing and lock it; a second process that locks it gets an error."""
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    with file_errors(folder):
        held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{folder}: another process uses this folder; wait until it ends, or choose another folder."
            raise FileError(message) from None
        except OSError:  # some network file systems have no locks
            pass
        yield
    finally:
        os.close(held)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn an OSError about `path` into a FileError that says what to do."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        advice = {
            errno.ENOSPC: "the disk is full; free some space and run the command again",
            errno.EFBIG: "the file is larger than this system allows; raise its limit (ulimit -f)",
            errno.EDQUOT: "the disk quota is used up; free some space and run the command again",
            errno.EACCES: "no permission; choose a folder you may write to",
            errno.EPERM: "no permission; choose a folder you may write to",
            errno.EROFS: "the file system is read-only; choose another folder",
            errno.ENOENT: "no such file or folder; check the path",
            errno.ENOTDIR: "a part of the path is a file, not a folder; check the path",
            errno.EEXIST: "a file exists, expected a folder; choose another path",
            errno.EISDIR: "it is a folder, expected a file",
        }.get(error.errno or 0, error.strerror or str(error))
        raise FileError(f"{path}: {advice}.") from error


def sha256(path: Path) -> str:
    """Return the file's SHA-256 as hexadecimal digits."""
    with file_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that new or renamed files in it survive a power cut; does nothing on Windows."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
