import contextlib
import gzip
import io
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from soap.data.binary_files import MAX_IDX_BYTES, read_idx, read_mnist
from soap.errors import FileError


def header(*shape: int, code: int = 8) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)


IMAGES = header(2, 3, 4) + bytes(range(24))


@pytest.mark.parametrize("name", ["plain", "images.gz"])
@pytest.mark.parametrize("packed", [False, True])
def test_reads_plain_and_gzipped_whatever_the_name(tmp_path: Path, name: str, packed: bool) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(IMAGES) if packed else IMAGES)
    images = read_idx(path, 3)
    assert images.dtype == np.uint8
    assert np.array_equal(images, np.arange(24).reshape(2, 3, 4))


@settings(max_examples=30, deadline=None)
@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=6)))
def test_arrays_of_any_shape_are_read(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    path = tmp_path_factory.mktemp("idx") / "a"
    path.write_bytes(bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes())
    assert np.array_equal(read_idx(path, array.ndim), array)


BAD = {
    "empty": (b"", "nothing"),
    "magic cut": (b"\0\0", "begins with 00 00;"),
    "first bytes not zero": (b"\1\0\x08\x03" + IMAGES[4:], "begins with 01 00 08 03"),
    "floats": (header(2, 3, 4, code=0x0D) + bytes(96), "00 00 0d 03; expected 00 00 08 03"),
    "labels for images": (header(24) + bytes(24), "00 00 08 01; expected 00 00 08 03"),
    "header cut": (IMAGES[:10], "ends inside its header"),
    "content cut": (IMAGES[:-1], "has 23 bytes after its header; expected exactly 24 bytes"),
    "no content": (IMAGES[:16], "has 0 bytes"),
    "trailing byte": (IMAGES + b"\0", "has more bytes after its header; expected exactly 24 bytes"),
    "no images": (header(0, 28, 28), "announces 0 x 28 x 28 = 0 bytes"),
    "huge": (header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(9), f"expected 1 to {MAX_IDX_BYTES}"),
    "one over the cap": (header(MAX_IDX_BYTES // 2 + 1, 2, 1), f"expected 1 to {MAX_IDX_BYTES}"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(("content", "says"), BAD.values(), ids=BAD.keys())
def test_false_headers_are_refused(tmp_path: Path, content: bytes, says: str, packed: bool) -> None:
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(FileError) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_raises_only_file_errors(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A changed byte or a truncated file gives other pixels or a FileError."""
    content = bytearray(data.draw(st.sampled_from([IMAGES, gzip.compress(IMAGES, mtime=0)])))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("idx") / "images"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(FileError):
        assert read_idx(path, 3).size == 24


@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[:-8] + b"\0\0\0\0" + c[-4:], lambda c: c + b"junk"])
def test_damaged_gzip(tmp_path: Path, damage) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(damage(gzip.compress(IMAGES)))
    with pytest.raises(FileError, match="gzip stream is damaged"):
        read_idx(path, 3)


def test_memory_is_bounded_by_the_content(tmp_path: Path) -> None:
    """A gzip bomb behind a plausible header, and a header that announces 1 GiB of missing content."""
    bomb, liar = tmp_path / "bomb.gz", tmp_path / "liar"
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as stream:
        stream.write(header(10, 28, 28))
        for _ in range(64):
            stream.write(bytes(2**20))
    bomb.write_bytes(packed.getvalue())
    liar.write_bytes(header(2**10, 2**10, 2**10) + bytes(100))
    tracemalloc.start()
    try:
        for path, says in (bomb, "has more bytes"), (liar, "has 100 bytes"):
            with pytest.raises(FileError, match=says):
                read_idx(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        read_idx(tmp_path / "absent", 3)
    with pytest.raises(FileError, match="it is a folder"):
        read_idx(tmp_path, 3)


PAIRS = {
    "wrong size": (header(2, 3, 4) + bytes(24), header(2) + bytes(2), "images are 3 x 4; expected 28 x 28"),
    "counts differ": (header(2, 28, 28) + bytes(1568), header(3) + bytes(3), "contains 2 images and .* 3 labels"),
    "label 10": (header(2, 28, 28) + bytes(1568), header(2) + bytes([1, 10]), "label 1 is 10; expected 0 to 9"),
}


@pytest.mark.parametrize(("images", "labels", "says"), PAIRS.values(), ids=PAIRS.keys())
def test_files_that_do_not_belong_together_are_refused(tmp_path: Path, images: bytes, labels: bytes, says: str) -> None:
    (tmp_path / "images").write_bytes(images)
    (tmp_path / "labels").write_bytes(labels)
    with pytest.raises(FileError, match=says):
        read_mnist([tmp_path / "images", tmp_path / "labels"])
