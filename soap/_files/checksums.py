"""Content that carries its own sha256, so that a flipped bit or a missing end is noticed when it is read.

The checksum stands inside what it vouches for, as `"checksum": "sha256:<64 digits>"`, and is taken over every byte with
its own digits as zeros. Content without one, written before there were any, is taken as it is.
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
"""What stands in the field until `with_checksum` knows better."""

_BLANK_FIELD = re.compile(rb'"checksum": ?"(sha256:0{64})"')
_CHECKSUM = re.compile("sha256:[0-9a-f]{64}")


def with_checksum(content: bytes) -> bytes:
    """The content with its one blank field with_checksum in."""
    place = _BLANK_FIELD.search(content)
    if place is None:
        raise ValueError("there is no blank checksum to fill in")
    return b"".join((content[: place.start(1)], _checksum(content).encode(), content[place.end(1) :]))


def verify(content: bytes, fields: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the checksum among the content's `fields`, where there is one, fits the content."""
    stated = fields.get(CHECKSUM_FIELD)
    if stated is None:
        # One flipped bit in the field's name must not turn it into content without a checksum.
        if any(isinstance(value, str) and _CHECKSUM.fullmatch(value) for value in fields.values()):
            raise ValueError("its checksum has another name: it was damaged after it was written")
        return
    if not isinstance(stated, str) or not _CHECKSUM.fullmatch(stated):
        raise ValueError("its checksum is none: it was damaged after it was written")
    place = content.find(stated.encode())
    if place < 0 or _checksum(content, place) != stated:
        raise ValueError("its checksum does not fit: it was changed or damaged after it was written")


def dumps(content: Mapping[str, Any], end: str = "", **style: Any) -> str:
    """JSON with the checksum of itself, `end` included; style: what `json.dumps` takes."""
    return with_checksum((json.dumps({**content, CHECKSUM_FIELD: ZERO_CHECKSUM}, **style) + end).encode()).decode()


def loads(text: bytes) -> dict[str, Any]:
    """What `dumps` wrote, without the checksum; anything else is a ValueError."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it holds no names")
    verify(text, content)
    return {name: value for name, value in content.items() if name != CHECKSUM_FIELD}


def write_json(path: Path, content: Mapping[str, Any], **style: Any) -> None:
    """Write a JSON file atomically, with its checksum."""
    atomic.write_text(path, dumps(content, "\n", indent=1, **style))


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """What `write` wrote; a damaged file is an error that names it and gives the advice."""
    with atomic.file_errors(path):
        text = path.read_bytes()
    try:
        return loads(text)
    except ValueError as error:
        raise FileError(f"{path}: {error}; {advice}.") from error


def _checksum(content: bytes, place: int | None = None) -> str:
    """Of the content, with the checksum at `place` as if it were blank."""
    digest = hashlib.sha256()
    if place is None:
        digest.update(content)
    else:
        for part in (content[:place], ZERO_CHECKSUM.encode(), memoryview(content)[place + len(ZERO_CHECKSUM) :]):
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"
