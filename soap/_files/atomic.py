"""Writing files so that a reader sees the old content or the new, never a part of it."""

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

UNFINISHED = ".unfinished"
"""How the names of temporary files end."""


@contextmanager
def replacing(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """A temporary file beside `path`; it takes its place, synced to disk, when the block ends well.

    previous: where the content so far, if any, is kept. At no moment is `path` without one or the other.
    """
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
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
    """Give the content of `path` a second name in place of what was there; both live on if either is replaced."""
    with replacing(to) as temporary:
        temporary.unlink()
        try:
            os.link(path, temporary)
        except OSError:  # a file system without links
            shutil.copyfile(path, temporary)


def remove_unfinished(folder: Path) -> None:
    """Remove what writers that were killed left in the folder; call it where nobody else is writing."""
    for path in folder.glob(f".*{UNFINISHED}"):
        with explained(path):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def locked(file: IO[bytes]) -> Iterator[None]:
    """Only one process at a time is inside with a file; where the system has no such lock, nobody waits."""
    if fcntl is not None:
        with suppress(OSError):  # some network folders have none
            fcntl.flock(file, fcntl.LOCK_EX)  # closing the file gives it back
    yield


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing; another process that asks for it meanwhile gets an error."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    with explained(folder):
        held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = f"{folder}: another process is at work in it; wait for its end, or choose another folder."
            raise FileError(told) from None
        except OSError:  # some network folders have no locks
            pass
        yield
    finally:
        os.close(held)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the operating system's errors about `path` into one that says what to do."""
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
            errno.ENOENT: "there is no such file or folder; check the path",
            errno.ENOTDIR: "a part of the path is a file, not a folder; check the path",
            errno.EEXIST: "a file stands where a folder is wanted; choose another path",
            errno.EISDIR: "it is a folder, want a file",
        }.get(error.errno or 0, error.strerror or str(error))
        raise FileError(f"{path}: {advice}.") from error


def sha256(path: Path) -> str:
    """The file's sha256 as hexadecimal digits."""
    with explained(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make a new name or a rename in it durable; a no-op where folders cannot be opened (Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_writable(folder: Path) -> None:
    """Raise unless files can be created in `folder`, which may not exist yet; call it before long work."""
    with explained(folder):
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise FileError(f"{existing} is a file, expected a folder; choose another path.")
    if not os.access(existing, os.W_OK):
        raise FileError(f"{existing}: no permission; choose a folder you may write to.")
