"""Unpack archives of published data sets, and verify their files by size and checksum.

Only the expected files are extracted, by exact name, and never outside the target folder. A checksum is written
"algorithm:hex digits".
"""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from soap.data.gzip_files import open_plain_or_gzip
from soap.data.sources import DataFile, Source
from soap.errors import FileError

READ_BYTES = 2**20

# For numbers in a header that are invalid or too large, tarfile raises more than its own exceptions.
CORRUPT_TAR_ERRORS = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, ArithmeticError)


def checksum(path: Path, algorithm: str) -> str:
    """The checksum of a file's bytes, as they are on disk."""
    try:
        with path.open("rb") as file:
            return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error


def unpacked_bytes(path: Path, limit: int) -> Iterator[bytes]:
    """A file's bytes in chunks, decompressed if it is gzipped; at most one byte more than `limit`."""
    left = limit + 1
    with open_plain_or_gzip(path) as stream:
        while left and (chunk := stream.read(min(READ_BYTES, left))):
            left -= len(chunk)
            yield chunk


def verify_file(path: Path, file: DataFile, source: Source) -> None:
    """Raise unless `path`, plain or gzipped, contains exactly the published `file`.

    Where no checksum is known, the size must match and the reader must accept the content.
    """
    algorithm, _, expected = (file.checksum or "sha256:").partition(":")
    digest, size = hashlib.new(algorithm, usedforsecurity=False), 0
    for chunk in unpacked_bytes(path, file.size):
        digest.update(chunk)
        size += len(chunk)
    if size != file.size:
        got = f"more than {file.size}" if size > file.size else str(size)
        raise FileError(f"{path}: has {got} bytes; expected {file.size} ({file.name}). Get the file again.")
    if expected and digest.hexdigest() != expected:
        raise FileError(
            f"{path}: {algorithm} is {digest.hexdigest()}; expected {expected} ({file.name}). Get the file again."
        )
    if not expected:
        source.read([path])


def unpack(packed: Path, files: tuple[DataFile, ...], source: Source, target: Path) -> None:
    """Write `files` into the folder `target` from the tar archive of `source`, or from one file, gzipped or not."""
    if packed.name.endswith(".tar.gz"):
        _extract(packed, files, source, target)
        return
    (file,) = files
    with (target / file.name).open("wb") as out:
        for chunk in unpacked_bytes(packed, file.size):
            out.write(chunk)


def _extract(archive: Path, files: tuple[DataFile, ...], source: Source, target: Path) -> None:
    """Extract regular members that have exactly the name `folder/name` and the published size.

    A member's name is compared, never used as a path.
    """
    missing = {f"{source.folder}/{file.name}": file for file in files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = missing.pop(str(PurePosixPath(member.name)), None)
                if file is not None:
                    _extract_member(tar, member, file, target)
                if not missing:
                    return
    except CORRUPT_TAR_ERRORS as error:
        raise FileError(f"{archive}: the archive is damaged ({error}); get it again.") from error
    raise FileError(f"{archive}: does not contain {', '.join(missing)}; it is not the published archive.")


def _extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, file: DataFile, target: Path) -> None:
    content = tar.extractfile(member) if member.isreg() else None
    if content is None or member.size != file.size:
        got = f"a file of {member.size} bytes" if member.isreg() else "not a regular file"
        raise FileError(f"{member.name} in the archive is {got}; expected a file of {file.size} bytes.")
    with content, (target / file.name).open("wb") as out:
        while chunk := content.read(READ_BYTES):
            out.write(chunk)
