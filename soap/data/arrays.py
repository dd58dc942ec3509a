"""The arrays of an .npz file, in no more memory than its own bytes fill.

numpy's own reader reserves what an array's header announces, be it terabytes, before it looks at the content.
"""

import io
import math
import zipfile
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers of an array's header by its version; later ones are for names that no plain numbers have."""

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What numpy writes. Others pack a gigabyte into a few bytes."""

CHUNK = 2**20


def read_arrays(
    file: io.BufferedIOBase, wanted: Collection[str] | None = None
) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    """What an archive holds by name, and of it the `wanted` arrays (None: all); objects in it are never opened.

    A damaged archive raises whatever numpy and zipfile meet it with.
    """
    with zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        chosen = [name for name in members if wanted is None or name in wanted]
        return list(members), {name: _array(archive, members[name]) for name in chosen}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if member.compress_type not in METHODS:
        raise ValueError(f"{member.filename} is packed in another way than numpy's")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"{member.filename} is of version {version}")
        shape, by_columns, kind = HEADERS[version](stream)
        if kind.hasobject or kind.itemsize == 0:
            raise ValueError(f"{member.filename} holds {kind}, no numbers")
        announced = math.prod(shape) * kind.itemsize
        content = bytearray()
        # To the end, and one byte too many: the checksum is looked at there.
        while len(content) <= announced and (piece := stream.read(min(CHUNK, announced + 1 - len(content)))):
            content += piece
    if len(content) != announced:
        raise ValueError(f"{member.filename} announces {announced} bytes and holds others")
    return np.ndarray(shape, kind, content, order="F" if by_columns else "C")
