"""One file from one address: resumed where it was cut, checked before it is put in place."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from soap.data.checksum import checksum
from soap.data.sources import Remote
from soap.errors import FileError, InputError

# Called with the file's name, the bytes done and the bytes in all (None where that is not known).
Progress = Callable[[str, int, int | None], None]

ATTEMPTS = 5
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 2**18


class UnavailableError(FileError):
    """The server is out of reach, or does not serve the file that is wanted; another one may."""


def fetch(url: str, remote: Remote, target: Path, progress: Progress | None = None) -> None:
    """Bring `url` to `target`, unless it is there; it appears only when whole and with the checksum of `remote`.

    What has arrived is kept beside it as `.part`, and the next call goes on from there. A part that turns out
    to belong to other content is dropped, and the file fetched once more from its beginning.
    """
    if not url.startswith(("https://", "http://")):
        raise InputError(f"cannot download from {url!r}; wanted an address that begins with https://")
    algorithm = remote.checksum.partition(":")[0]
    if target.is_file() and checksum(target, algorithm) == remote.checksum:
        return
    part = target.with_name(target.name + ".part")
    found_part = _size(part) > 0
    for _ in range(ATTEMPTS):
        _receive(url, remote, part, progress)
        if _size(part) < remote.size:
            continue
        got = checksum(part, algorithm)
        if got == remote.checksum:
            part.replace(target)
            return
        part.unlink()
        if not found_part:
            raise UnavailableError(
                f"{url}: what arrived has {got}; wanted {remote.checksum}. It was removed; "
                "try again later or from another mirror."
            )
        found_part = False
    raise UnavailableError(
        f"{url}: the connection was cut {ATTEMPTS} times, at {_size(part)} of {remote.size} bytes. "
        "Run the same command again to go on from there."
    )


def _receive(url: str, remote: Remote, part: Path, progress: Progress | None) -> None:
    """Append to `part` what the server sends, up to the wanted size; returns early if the connection is cut."""
    done = _size(part)
    if done == remote.size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as problem:
        problem.close()
        if problem.code == 416:  # the part is longer than the server's file: it is of something else
            part.unlink(missing_ok=True)
            return
        raise UnavailableError(
            f"{url}: the server answered {problem.code} {problem.reason}; wanted the file {remote.name}."
        ) from problem
    except (OSError, http.client.HTTPException) as problem:
        reason = problem.reason if isinstance(problem, urllib.error.URLError) else problem
        raise UnavailableError(f"cannot reach {url}: {reason}. Check the network connection.") from problem
    with response:
        if done and response.status != 206:  # the server does not do ranges and sends all from the beginning
            done = 0
        elif done and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            part.unlink()
            return
        if response.length is not None and done + response.length != remote.size:
            raise UnavailableError(
                f"{url} serves {done + response.length} bytes; wanted {remote.size}. It is not the published file."
            )
        with part.open("ab" if done else "wb") as file:
            while piece := _piece(response):
                done += len(piece)
                if done > remote.size:
                    raise UnavailableError(f"{url} serves more than the wanted {remote.size} bytes.")
                file.write(piece)
                if progress is not None:
                    progress(remote.name, done, remote.size)


def _piece(response: http.client.HTTPResponse) -> bytes:
    """The next bytes; none at the end, or where the connection breaks."""
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException):
        return b""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
