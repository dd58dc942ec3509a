"""Files that contain their own SHA-256, so that a flipped bit or a missing end is detected on reading.

The field `"checksum": "sha256:<64 digits>"` is part of the content. The checksum covers every byte, with its own digits
as zeros. Content of older versions, without the field, is accepted unchecked.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soap._files import atomic
from soap.errors import FileError

CHECKSUM_FIELD = "checksum"
ZERO_CHECKSUM = "sha256:" + 64 * "0"
"""Placeholder in the field until `with_checksum` fills it in."""

_PLACEHOLDER = re.compile(rb'"checksum": ?"(sha256:0{64})"')
_CHECKSUM = re.compile("sha256:[0-9a-f]{64}")


def with_checksum(content: bytes) -> bytes:
    """Return the content with its placeholder replaced by the checksum."""
    place = _PLACEHOLDER.search(content)
    if place is None:
        raise ValueError("there is no checksum placeholder to fill in")
    return b"".join((content[: place.start(1)], _checksum(content).encode(), content[place.end(1) :]))


def verify(content: bytes, fields: Mapping[str, Any]) -> None:
    """Raise a ValueError if the checksum in `fields`, the parsed content, does not match the content."""
    stated = fields.get(CHECKSUM_FIELD)
    if stated is None:
        # One flipped bit in the field's name must not make the content pass as one without a checksum.
        if any(isinstance(value, str) and _CHECKSUM.fullmatch(value) for value in fields.values()):
            raise ValueError("its checksum field is misspelled: the file was damaged after it was written")
        return
    if not isinstance(stated, str) or not _CHECKSUM.fullmatch(stated):
        raise ValueError("its checksum is not a SHA-256: the file was damaged after it was written")
    place = content.find(stated.encode())
    if place < 0 or _checksum(content, place) != stated:
        raise ValueError("its checksum does not match: the file was changed or damaged after it was written")


def dumps(content: Mapping[str, Any], end: str = "", **style: Any) -> str:
    """Return JSON text with its own checksum, which covers `end`; `style` goes to `json.dumps`."""
    return with_checksum((json.dumps({**content, CHECKSUM_FIELD: ZERO_CHECKSUM}, **style) + end).encode()).decode()


def loads(text: bytes) -> dict[str, Any]:
    """Return what `dumps` wrote, without the checksum field; raise a ValueError if it is not intact."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    verify(text, content)
    return {name: value for name, value in content.items() if name != CHECKSUM_FIELD}


def write_json(path: Path, content: Mapping[str, Any], **style: Any) -> None:
    """Write a JSON file atomically, with its own checksum."""
    atomic.write_text(path, dumps(content, "\n", indent=1, **style))


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Return what `write_json` wrote; raise a FileError with the path and the advice if the file is damaged."""
    with atomic.file_errors(path):
        text = path.read_bytes()
    try:
        return loads(text)
    except ValueError as error:
        raise FileError(f"{path}: {error}; {advice}.") from error


def _checksum(content: bytes, place: int | None = None) -> str:
    """Return the checksum of the content, with the digits at `place` taken as zeros."""
    digest = hashlib.sha256()
    if place is None:
        digest.update(content)
    else:
        for part in (content[:place], ZERO_CHECKSUM.encode(), memoryview(content)[place + len(ZERO_CHECKSUM) :]):
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"
