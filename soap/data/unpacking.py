"""Unpacking: the expected files by exact name, nothing else, and never outside the target folder."""

import gzip
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from soap.data.checksum import CHUNK, unpacked
from soap.data.sources import DataFile, Source
from soap.errors import FileError

# Beside its own error tarfile lets pass what its numbers lead to where they are no numbers, or too large.
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, ArithmeticError)


def unpack(packed: Path, files: tuple[DataFile, ...], source: Source, target: Path) -> None:
    """Write `files` into the folder `target` from the tar archive of `source`, or from one file, gzipped or not."""
    if packed.name.endswith(".tar.gz"):
        _extract(packed, files, source, target)
        return
    (file,) = files
    with (target / file.name).open("wb") as out:
        for piece in unpacked(packed, file.size):
            out.write(piece)


def _extract(archive: Path, files: tuple[DataFile, ...], source: Source, target: Path) -> None:
    """Only regular members called exactly `folder/name` and of exactly the published size are read.

    A member's name is compared, never used as a path.
    """
    wanted = {f"{source.folder}/{file.name}": file for file in files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = wanted.pop(str(PurePosixPath(member.name)), None)
                if file is not None:
                    _extract_member(tar, member, file, target)
                if not wanted:
                    return
    except _DAMAGE as problem:
        raise FileError(f"{archive}: the archive is damaged ({problem}); get it again.") from problem
    raise FileError(f"{archive}: lacks {', '.join(wanted)}; it is not the published archive.")


def _extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, file: DataFile, target: Path) -> None:
    content = tar.extractfile(member) if member.isreg() else None
    if content is None or member.size != file.size:
        got = f"a file of {member.size} bytes" if member.isreg() else "no regular file"
        raise FileError(f"{member.name} in the archive is {got}; wanted a file of {file.size} bytes.")
    with content, (target / file.name).open("wb") as out:
        while piece := content.read(CHUNK):
            out.write(piece)
