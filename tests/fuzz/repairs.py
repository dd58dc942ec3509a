"""Mutants made to pass the first check of their format, so that damage gets further in: checksums and lengths."""

import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from soap._files import checksums
from soap.results import Provenance, Row

PNG = b"\x89PNG\r\n\x1a\n"
JSON = json.JSONDecoder()


def gzipped(content: bytes) -> bytes:
    """A plain file packed; a packed one as it is."""
    return content if content[:2] == b"\x1f\x8b" else gzip.compress(content, 1, mtime=0)


def with_checksums(content: bytes) -> bytes:
    """A PNG whose chunks have the CRCs they should have."""
    if not content.startswith(PNG):
        return content
    parts, place = [PNG], len(PNG)
    while place + 8 <= len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        body = content[place + 4 : place + 8 + length]
        parts.append(content[place : place + 4] + body + struct.pack(">I", zlib.crc32(body)))
        place += 12 + length
    return b"".join(parts)


def with_its_length(content: bytes) -> bytes:
    """A safetensors file whose first number says where its header ends."""
    try:
        _, end = JSON.raw_decode(content[8:].decode("latin-1"))
    except (ValueError, RecursionError):
        return content
    return struct.pack("<Q", end) + content[8:]


def inside(carrier: Path, key: str) -> Callable[[bytes], bytes]:
    """A mender of safetensors files, which puts whatever is none into the carrier's metadata, as the text `key`."""

    def mended(content: bytes) -> bytes:
        if content[8:10] == b'{"':
            return with_its_length(content)
        whole = carrier.read_bytes()
        (length,) = struct.unpack("<Q", whole[:8])
        header = json.loads(whole[8 : 8 + length])
        header["__metadata__"] = {key: content.decode(errors="replace")}
        packed = json.dumps(header, separators=(",", ":")).encode()
        return struct.pack("<Q", len(packed)) + packed + whole[8 + length :]

    return mended


def archived(content: bytes) -> bytes:
    """A single .npy as the x of a whole .npz, or as the y where it says that it holds whole numbers."""
    if not content.startswith(b"\x93NUMPY"):
        return content
    labels = b"'<i8'" in content[:128]
    good = io.BytesIO()
    np.save(good, np.zeros((3, 4), np.uint8) if labels else np.array([0, 1, 2], np.int64))
    members = (good.getvalue(), content) if labels else (content, good.getvalue())
    packed = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if zlib.crc32(content) % 2 else zipfile.ZIP_STORED
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, member in zip(("x.npy", "y.npy"), members, strict=True):
            archive.writestr(name, member)
    return packed.getvalue()


def signed(content: bytes) -> bytes:
    """Result rows whose lines have the key, the accuracy and the checksum they should have, where they can."""
    return b"\n".join(_signed_line(line) for line in content.split(b"\n"))


def _signed_line(line: bytes) -> bytes:
    try:
        row = json.loads(line)
        for field in ("key", "accuracy"):
            row[field] = _right(row, field)
        return checksums.dumps(
            {name: value for name, value in row.items() if name != checksums.CHECKSUM_FIELD}
        ).encode()
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, ZeroDivisionError, OverflowError):
        return line


def _right(row: dict[str, object], field: str) -> object:
    """What `from_json` would have the field be."""
    fields = {name: value for name, value in row.items() if name in Row.__dataclass_fields__}
    provenance = row["provenance"]
    made = Row(**{**fields, "provenance": Provenance(**provenance)})  # type: ignore[arg-type,dict-item]
    return getattr(made, field)
