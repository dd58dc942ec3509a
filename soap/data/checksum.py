"""Checksums of files, and of what gzipped files hold. A checksum is written "algorithm:hex digits"."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from soap.data.gunzip import opened
from soap.data.sources import DataFile, Source
from soap.errors import FileError

CHUNK = 2**20


def checksum(path: Path, algorithm: str) -> str:
    """The checksum of a file's own bytes."""
    try:
        with path.open("rb") as file:
            return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}.") from problem


def unpacked(path: Path, limit: int) -> Iterator[bytes]:
    """A file's bytes in pieces, gunzipped if need be; at most one byte more than `limit`."""
    left = limit + 1
    with opened(path) as stream:
        while left and (piece := stream.read(min(CHUNK, left))):
            left -= len(piece)
            yield piece


def verify(path: Path, file: DataFile, source: Source) -> None:
    """Raise unless `path`, plain or gzipped, holds exactly the published `file`.

    Where no checksum is known, the size must match and the reader must accept the content.
    """
    algorithm, _, wanted = (file.checksum or "sha256:").partition(":")
    digest, size = hashlib.new(algorithm, usedforsecurity=False), 0
    for piece in unpacked(path, file.size):
        digest.update(piece)
        size += len(piece)
    if size != file.size:
        got = f"more than {file.size}" if size > file.size else str(size)
        raise FileError(f"{path}: holds {got} bytes; wanted {file.size} ({file.name}). Get the file again.")
    if wanted and digest.hexdigest() != wanted:
        raise FileError(
            f"{path}: {algorithm} is {digest.hexdigest()}; wanted {wanted} ({file.name}). Get the file again."
        )
    if not wanted:
        source.read([path])
