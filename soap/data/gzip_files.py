"""Read a file that may be gzipped, recognised by its first bytes and not by its name."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soap.errors import FileError


@contextmanager
def open_plain_or_gzip(path: Path) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, decompressed if it is gzipped; errors of reading become `FileError`."""
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if gzipped:
                with gzip.GzipFile(fileobj=file, mode="rb") as stream:
                    yield stream
            else:
                yield file
    except FileError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{path}: the gzip stream is damaged ({error}); get the file again.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error
