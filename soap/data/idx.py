"""The IDX format of MNIST: a big-endian header of sizes, then the bytes. Plain or gzipped.

Header: two zero bytes, a type code (8 = unsigned byte, the only one read here), the number of dimensions,
then each dimension as a 32-bit integer. See http://yann.lecun.com/exdb/mnist/ ("file formats").
"""

import gzip
import io
import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from soap.data.gunzip import opened
from soap.errors import FileError

UNSIGNED_BYTE = 8
MAX_BYTES = 2**30
CHUNK = 2**20


def read_idx(path: Path, ndim: int) -> npt.NDArray[np.uint8]:
    """The array of `ndim` dimensions in an IDX file; gzip is known by its magic bytes, not by its name.

    Memory stays within what the header announces, and the header is believed only up to 1 GiB.
    """
    with opened(path) as file:
        return _read(file, str(path), ndim)


def write_idx(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """Write `array` as gzipped IDX; the same array gives the same bytes (no name, no time in the header)."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, UNSIGNED_BYTE, array.ndim, *array.shape)
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(header + array.tobytes())


def _read(file: io.BufferedIOBase, name: str, ndim: int) -> npt.NDArray[np.uint8]:
    magic = file.read(4)
    wanted = bytes((0, 0, UNSIGNED_BYTE, ndim))
    if magic != wanted:
        raise FileError(
            f"{name}: begins with {magic.hex(' ') or 'nothing'}; wanted {wanted.hex(' ')} "
            f"(IDX, unsigned bytes, {ndim} dimension{'s' if ndim > 1 else ''})."
        )
    sizes = file.read(4 * ndim)
    if len(sizes) < 4 * ndim:
        raise FileError(f"{name}: ends inside its header; get the file again.")
    shape = struct.unpack(f">{ndim}I", sizes)
    announced = math.prod(shape)
    if not 0 < announced <= MAX_BYTES:
        raise FileError(
            f"{name}: its header announces {' x '.join(map(str, shape))} = {announced} bytes; "
            f"wanted 1 to {MAX_BYTES}. The header is wrong; get the file again."
        )
    # In small pieces, and one byte too many: a header that announces more than there is must not reserve
    # memory for it, and one that announces less (or a gzip bomb) is noticed without unpacking the rest.
    content = bytearray()
    while len(content) <= announced:
        piece = file.read(min(CHUNK, announced + 1 - len(content)))
        if not piece:
            break
        content += piece
    if len(content) != announced:
        got = "more" if len(content) > announced else f"{len(content)} bytes"
        raise FileError(
            f"{name}: holds {got} after its header; wanted exactly {announced} bytes "
            f"({' x '.join(map(str, shape))}). Get the file again."
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
