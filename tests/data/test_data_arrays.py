"""The reader of .npz files: numpy's own arrays to the bit, and none that is not there."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from soap.data.npz import read_arrays

KINDS = st.one_of(
    arrays_of.integer_dtypes(), arrays_of.unsigned_integer_dtypes(), arrays_of.floating_dtypes(),
    arrays_of.boolean_dtypes(), arrays_of.complex_number_dtypes(), arrays_of.unicode_string_dtypes(max_len=4),
)  # fmt: skip
ARRAYS = arrays_of.arrays(KINDS, arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


@given(first=ARRAYS, second=ARRAYS, turned=st.booleans(), packed=st.booleans())
@settings(max_examples=60)
def test_arrays_equal_those_read_by_numpy(first, second, turned, packed):
    file = io.BytesIO()
    save = np.savez_compressed if packed else np.savez
    save(file, first=np.array(first, order="F" if turned else "C"), b=second)
    held, arrays = read_arrays(file)
    assert held == ["first", "b"]
    for name, wanted in (("first", first), ("b", second)):
        assert arrays[name].dtype == wanted.dtype
        assert arrays[name].shape == wanted.shape
        assert arrays[name].tobytes() == wanted.tobytes()
        assert arrays[name].flags.writeable
    assert list(read_arrays(file, ["b", "c"])[1]) == ["b"]


def member(array, *, shape=None, version=(1, 0)):
    """An .npy whose header may say another shape."""
    file = io.BytesIO()
    if shape is None:
        np.lib.format.write_array(file, array, version=version)
        return file.getvalue()
    np.lib.format.write_array_header_1_0(file, {"descr": array.dtype.str, "fortran_order": False, "shape": shape})
    return file.getvalue() + array.tobytes()


def archive(content, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as packed:
        packed.writestr("x.npy", content)
    return file


FIVE = np.arange(5.0)
LIES = {
    "more than there is": (archive(member(FIVE, shape=(6,))), "announces 48 bytes"),
    "less than there is": (archive(member(FIVE, shape=(4,))), "announces 32 bytes"),
    "terabytes": (archive(member(FIVE, shape=(10**12,))), "announces 8000000000000 bytes"),
    "terabytes, packed": (archive(member(FIVE, shape=(10**12,)), zipfile.ZIP_DEFLATED), "announces 8000000000000"),
    "negative": (archive(member(FIVE, shape=(-1, -5))), "egative"),
    "packed by bzip2": (archive(member(FIVE), zipfile.ZIP_BZIP2), "compressed by a method"),
    "packed by LZMA": (archive(member(FIVE), zipfile.ZIP_LZMA), "compressed by a method"),
    "objects": (archive(member(np.array([None]))), "contains object, not plain numbers"),
    "texts of no length": (
        archive(member(np.array([b"a"])).replace(b"|S1", b"|S0")),
        "contains .S0, not plain numbers",
    ),
    "version 3": (archive(member(FIVE, version=(3, 0))), r"has format version \(3, 0\)"),
    "no array": (archive(b"hello, world"), "magic"),
}


@pytest.mark.parametrize(("file", "says"), LIES.values(), ids=LIES)
def test_a_missing_array_is_refused_without_allocating_it(file, says):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=says):
            read_arrays(file)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_version_2_is_read():
    assert np.array_equal(read_arrays(archive(member(FIVE, version=(2, 0))))[1]["x"], FIVE)


def test_a_changed_value_fails_the_checksum():
    whole = bytearray(archive(member(FIVE)).getvalue())
    whole[whole.index(np.float64(3).tobytes())] ^= 1
    with pytest.raises(zipfile.BadZipFile, match="CRC"):
        read_arrays(io.BytesIO(bytes(whole)))
