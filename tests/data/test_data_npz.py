import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from soap.data import load
from soap.errors import FileError, InputError, SoapError

RANDOM = np.random.default_rng(0)
NCHW = RANDOM.integers(0, 256, (4, 3, 8, 6), np.uint8)
Y = np.array([0, 2, 1, 0])


def saved(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


LAYOUTS = {
    "channels first": (NCHW, NCHW),
    "channels last": (NCHW.transpose(0, 2, 3, 1), NCHW),
    "grey": (NCHW[:, 0], NCHW[:, :1]),
    "grey, channels first": (NCHW[:, :1], NCHW[:, :1]),
    "grey, channels last": (NCHW[:, 0, :, :, None], NCHW[:, :1]),
    "table": (NCHW.reshape(4, -1), NCHW.reshape(4, -1)),
    "video": (NCHW[:, None], NCHW[:, None]),
}


@pytest.mark.parametrize(("x", "wanted"), LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.float32, np.float64])
def test_layouts_and_types(tmp_path: Path, x: np.ndarray, wanted: np.ndarray, kind: type) -> None:
    data = load(saved(tmp_path, x=x if kind is np.uint8 else (x / 255).astype(kind), y=Y))
    assert data.x.shape == wanted.shape
    assert torch.allclose(data.x, torch.tensor(wanted / 255, dtype=torch.float32), atol=1e-3)
    assert data.y.tolist() == Y.tolist()
    assert (data.name, data.split, data.classes) == ("data.npz", "test", ("0", "1", "2"))
    if kind is not np.float16:
        assert data.sha256 == load(saved(tmp_path, x=wanted, y=Y.astype(np.int8))).sha256


def test_compressed_and_by_string(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "data.npz", x=NCHW, y=Y)
    assert len(load(str(tmp_path / "data.npz"), "train")) == 4


def test_splits_share_their_classes(tmp_path: Path) -> None:
    path = saved(tmp_path, x_train=NCHW, y_train=Y, x_test=NCHW[:2], y_test=np.array([1, 0]))
    train, test = load(path, "train"), load(path, "test")
    assert (len(train), len(test)) == (4, 2)
    assert test.y.tolist() == [1, 0]
    assert train.classes == test.classes == ("0", "1", "2")


def floats(change: float) -> np.ndarray:
    x = NCHW / 255
    x[1, 2, 3, 4] = change
    return x


BAD = {
    "NaN": ({"x": floats(np.nan), "y": Y}, "x contains NaN or infinite"),
    "infinite": ({"x": floats(np.inf), "y": Y}, "x contains NaN or infinite"),
    "too big for float32": ({"x": floats(1e300), "y": Y}, r"runs from 0 to 1e\+300; expected values in \[0, 1\]\.$"),
    "0..255": ({"x": NCHW.astype(np.float32), "y": Y}, "divide by 255"),
    "negative": ({"x": floats(-0.5), "y": Y}, r"runs from -0.5 to 1; expected values in \[0, 1\]\.$"),
    "int64": ({"x": NCHW.astype(np.int64), "y": Y}, "x is int64; expected uint8"),
    "text": ({"x": NCHW.astype(str), "y": Y}, "x is <U"),
    "lengths": ({"x": NCHW, "y": Y[:3]}, r"x has shape \(4, 3, 8, 6\) and y \(3,\)"),
    "empty": ({"x": NCHW[:0], "y": Y[:0]}, r"y is int64 \(0,\)"),
    "scalar x": ({"x": np.array(0.5), "y": Y}, r"x has shape \(\)"),
    "no features": ({"x": NCHW[:, 0, 0, 0], "y": Y}, r"x has shape \(4,\)"),
    "float labels": ({"x": NCHW, "y": Y.astype(float)}, "y is float64"),
    "one-hot labels": ({"x": NCHW, "y": np.eye(4, dtype=int)}, r"y is int64 \(4, 4\)"),
    "negative label": ({"x": NCHW, "y": Y - 1}, "y runs from -1 to 1; expected class numbers from 0"),
    "absurd label": ({"x": NCHW, "y": Y * 10**9}, "to 2000000000; expected class numbers"),
    "bad labels in the other split": (
        {"x_test": NCHW, "y_test": Y, "x_train": NCHW, "y_train": Y - 1},
        "y_train runs from -1",
    ),
    "ambiguous": ({"x": NCHW[..., :3], "y": Y}, "channels-first or channels-last"),
    "two channels": ({"x": NCHW[:, :2], "y": Y}, "neither 1 nor 3 channels"),
    "no y": ({"x": NCHW}, "contains x; expected 'y'"),
    "other names": ({"images": NCHW, "labels": Y}, "contains images, labels; expected 'x'"),
    "only the other split": ({"x_train": NCHW, "y_train": Y}, "contains x_train, y_train; expected 'x'"),
}


@pytest.mark.parametrize(("arrays", "says"), BAD.values(), ids=BAD.keys())
def test_wrong_content(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    path = saved(tmp_path, **arrays)
    with pytest.raises(InputError, match=says) as caught:
        load(path)
    assert str(path) in str(caught.value)


class Trap:
    """Creates a file if it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def objects(trace: Path) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, x=np.array([Trap(trace), None]), y=np.array([0, 1]))
    return packed.getvalue()


def long_header(_: Path) -> bytes:
    """An array whose header announces far more than the content."""
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "|u1", "fortran_order": False, "shape": (2**50, 784)})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.npy", array.getvalue() + bytes(100))
        archive.writestr("y.npy", array.getvalue())
    return packed.getvalue()


def single(_: Path) -> bytes:
    packed = io.BytesIO()
    np.save(packed, NCHW)
    return packed.getvalue()


def no_array(_: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x", b"not an array")
        archive.writestr("y", b"nor this")
    return packed.getvalue()


UNREADABLE = {
    "no array": no_array,
    "empty": lambda _: b"",
    "text": lambda _: b"x = [1, 2, 3]",
    "pickle": lambda trace: pickle.dumps(Trap(trace)),
    "objects": objects,
    "header that lies": long_header,
    "single array": single,
}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_files(tmp_path: Path, make) -> None:
    path, trace = tmp_path / "data.npz", tmp_path / "trace"
    path.write_bytes(make(trace))
    with pytest.raises(FileError, match=r"numpy.savez\(path, x=x, y=y\)") as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert not trace.exists()


def test_a_truncated_or_changed_file_is_refused(tmp_path: Path) -> None:
    """Only SoapErrors are raised; a changed file that is read passed the archive's CRC."""
    path = saved(tmp_path, x=NCHW[:, 0, 0], y=Y)
    whole, wanted = path.read_bytes(), load(path).sha256
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(SoapError):
            load(path)
    for place in range(0, len(whole), 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            got = load(path).sha256
        except SoapError:
            continue
        assert got == wanted


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        load(tmp_path / "absent.npz")
