"""Reading a file that may be gzipped: known by its first bytes, since names are not to be trusted."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soap.errors import FileError


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, gunzipped as they are read if it is gzipped; what goes wrong in reading is a FileError."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                    yield unpacked
            else:
                yield file
    except FileError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise FileError(f"{path}: the gzip stream is damaged ({problem}); get the file again.") from problem
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}.") from problem
