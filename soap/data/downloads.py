"""Download a published data set into the data root, or import it from local files.

Files are verified first and then renamed into place, so the root never contains a partial file, and an earlier version
stays until the new one is complete. Only the expected files of an archive are extracted, by exact name.
"""

import gzip
import hashlib
import http.client
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from soap._files import atomic
from soap.data.binary_files import open_plain_or_gzip
from soap.data.loading import data_root, find_file, known_source
from soap.data.sources import DataFile, Remote, Source
from soap.errors import FileError, InputError

DownloadProgress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes received and the total bytes (None if unknown)."""

PackedFiles = tuple[Path, tuple[DataFile, ...]]
"""A local file and the published files that it contains."""

MAX_CONNECTIONS = 5
READ_TIMEOUT_S = 30.0
READ_BYTES = 2**18

# For numbers in a header that are invalid or too large, tarfile raises more than its own exceptions.
CORRUPT_TAR_ERRORS = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, ArithmeticError)


class UnavailableError(FileError):
    """The server cannot be reached or serves another file; another mirror may work."""


def download(
    name: str, *, root: Path | None = None, mirror: str | None = None, progress: DownloadProgress | None = None
) -> Path:
    """Download a published data set unless it is present, and return its folder.

    `mirror` is the URL of a folder that replaces the official ones; the checksums stay the same. An interrupted
    download is resumed by the next call. `progress` is called with (file, bytes received, total bytes).
    """
    source = known_source(name)
    folder = data_root(root) / source.folder
    mirrors = source.mirrors if mirror is None else (mirror.rstrip("/") + "/",)
    with atomic.file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for remote in source.remotes:
            files = source.inside(remote)
            if all(_is_intact(file, folder, source) for file in files):
                continue
            packed = folder / remote.name
            _fetch_from_any(mirrors, name, remote, packed, progress)
            _install(folder, source, [(packed, files)])
            packed.unlink()
    return folder


def import_files(name: str, folder: Path, *, root: Path | None = None) -> Path:
    """Copy a published data set from `folder`, or from one of its subfolders, into the data root; return its folder.

    Files may be plain or gzipped, or inside their archive. All are verified before any is copied.
    """
    source = known_source(name)
    found = _find_packed(name, source, folder)
    for packed, files in found:
        archive = next((remote for remote in source.remotes if remote.is_archive and remote.name == packed.name), None)
        if archive is None:
            verify_file(packed, files[0], source)
        elif (got := atomic.sha256(packed)) != archive.sha256:
            raise FileError(f"{packed}: sha256 is {got}; expected {archive.sha256}. Get the archive again.")
    target = data_root(root) / source.folder
    with atomic.file_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    _install(target, source, found)
    return target


def fetch(url: str, remote: Remote, target: Path, progress: DownloadProgress | None = None) -> None:
    """Download `url` to `target`, which appears only when complete and with the SHA-256 of `remote`.

    A partial download is kept next to it as `.part` and resumed by the next call. A part with other content is removed,
    and the file is downloaded once more from its beginning.
    """
    if not url.startswith(("https://", "http://")):
        raise InputError(f"cannot download from {url!r}; expected an address that begins with https://")
    if target.is_file() and atomic.sha256(target) == remote.sha256:
        return
    part = target.with_name(target.name + ".part")
    found_part = _size(part) > 0
    for _ in range(MAX_CONNECTIONS):
        _receive(url, remote, part, progress)
        if _size(part) < remote.size:
            continue
        got = atomic.sha256(part)
        if got == remote.sha256:
            part.replace(target)
            return
        part.unlink()
        if not found_part:
            raise UnavailableError(
                f"{url}: the file received has sha256 {got}; expected {remote.sha256}. It was removed; "
                "try again later or use another mirror."
            )
        found_part = False
    raise UnavailableError(
        f"{url}: the connection broke {MAX_CONNECTIONS} times, at {_size(part)} of {remote.size} bytes. "
        "Run the same command again to resume."
    )


def _fetch_from_any(
    mirrors: tuple[str, ...], name: str, remote: Remote, target: Path, progress: DownloadProgress | None
) -> None:
    errors = []
    for mirror in mirrors:
        try:
            fetch(mirror + remote.name, remote, target, progress)
            return
        except UnavailableError as error:
            errors.append(str(error))
    raise FileError(
        f"could not download {name}. {' '.join(errors)} If you have the files, "
        f"import them with `soap data import {name} DIR`."
    )


def _receive(url: str, remote: Remote, part: Path, progress: DownloadProgress | None) -> None:
    """Append the server's bytes to `part`, up to the expected size; return early if the connection breaks."""
    done = _size(part)
    if done == remote.size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=READ_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is longer than the server's file, so it belongs to other content
            part.unlink(missing_ok=True)
            return
        raise UnavailableError(
            f"{url}: the server returned {error.code} {error.reason}; expected the file {remote.name}."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise UnavailableError(f"cannot reach {url}: {reason}. Check the network connection.") from error
    with response:
        if done and response.status != 206:  # the server ignores ranges and sends the file from its beginning
            done = 0
        elif done and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            part.unlink()
            return
        if response.length is not None and done + response.length != remote.size:
            raise UnavailableError(
                f"{url} serves {done + response.length} bytes; expected {remote.size}. It is not the published file."
            )
        with part.open("ab" if done else "wb") as file:
            while chunk := _next_chunk(response):
                done += len(chunk)
                if done > remote.size:
                    raise UnavailableError(f"{url} serves more than the expected {remote.size} bytes.")
                file.write(chunk)
                if progress is not None:
                    progress(remote.name, done, remote.size)


def _next_chunk(response: http.client.HTTPResponse) -> bytes:
    """The next bytes; empty at the end and when the connection breaks."""
    try:
        return response.read(READ_BYTES)
    except (OSError, http.client.HTTPException):
        return b""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _find_packed(name: str, source: Source, folder: Path) -> list[PackedFiles]:
    """All files, or their archive, in `folder` or in one of its subfolders."""
    with atomic.file_errors(folder):
        places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    for place in places:
        found: list[PackedFiles] = [
            (path, (file,)) for file in source.files if (path := find_file(file, place)) is not None
        ]
        if len(found) == len(source.files):
            return found
    for place in places:
        for remote in source.remotes:
            if remote.is_archive and (place / remote.name).is_file():
                return [(place / remote.name, source.files)]
    raise FileError(
        f"{folder} does not contain {name}; expected {', '.join(file.name for file in source.files)}, "
        "all of them in this folder or all in one subfolder."
    )


def _install(folder: Path, source: Source, found: list[PackedFiles]) -> None:
    """Unpack and verify in a temporary folder next to the target, then rename into place."""
    with atomic.file_errors(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as temporary:
        for packed, files in found:
            unpack(packed, files, source, Path(temporary))
        names = [file.name for _, files in found for file in files]
        for name in names:
            (Path(temporary) / name).replace(folder / name)


def _is_intact(file: DataFile, folder: Path, source: Source) -> bool:
    path = find_file(file, folder)
    try:
        if path is not None:
            verify_file(path, file, source)
    except FileError:
        return False
    return path is not None


def verify_file(path: Path, file: DataFile, source: Source) -> None:
    """Raise unless `path`, plain or gzipped, contains exactly the published `file`.

    If no checksum is known, the size must match and the reader must accept the content.
    """
    with open_plain_or_gzip(path) as stream:
        _copy(stream.read, lambda chunk: None, file, path)
    if file.sha256 is None:
        source.read([path])


def unpack(packed: Path, files: tuple[DataFile, ...], source: Source, target: Path) -> None:
    """Write `files` into the folder `target` from the tar archive of `source`, or from one file, gzipped or not."""
    if packed.name.endswith(".tar.gz"):
        _extract(packed, files, source, target)
        return
    (file,) = files
    with open_plain_or_gzip(packed) as stream, (target / file.name).open("wb") as out:
        _copy(stream.read, out.write, file, packed)


def _extract(archive: Path, files: tuple[DataFile, ...], source: Source, target: Path) -> None:
    """Extract regular members that have exactly the name `folder/name` and the published size.

    A member's name is compared, never used as a path.
    """
    missing = {f"{source.folder}/{file.name}": file for file in files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = missing.pop(str(PurePosixPath(member.name)), None)
                if file is None:
                    continue
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or member.size != file.size:
                    got = f"a file of {member.size} bytes" if member.isreg() else "not a regular file"
                    raise FileError(f"{member.name} in the archive is {got}; expected a file of {file.size} bytes.")
                with content, (target / file.name).open("wb") as out:
                    _copy(content.read, out.write, file, archive)
                if not missing:
                    return
    except CORRUPT_TAR_ERRORS as error:
        raise FileError(f"{archive}: the archive is damaged ({error}); get it again.") from error
    raise FileError(f"{archive}: does not contain {', '.join(missing)}; it is not the published archive.")


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], object], file: DataFile, origin: Path) -> None:
    """Pass the published `file` from `read` to `write`; raise if its content differs from the published one.

    At most one byte more than its size is read, so a gzip bomb is refused early.
    """
    digest, size = hashlib.sha256(), 0
    while size <= file.size and (chunk := read(min(READ_BYTES, file.size + 1 - size))):
        digest.update(chunk)
        size += len(chunk)
        write(chunk)
    if size != file.size:
        got = f"more than {file.size}" if size > file.size else str(size)
        raise FileError(f"{origin}: has {got} bytes; expected {file.size} ({file.name}). Get the file again.")
    if file.sha256 not in (None, digest.hexdigest()):
        raise FileError(
            f"{origin}: sha256 is {digest.hexdigest()}; expected {file.sha256} ({file.name}). Get the file again."
        )
