import hashlib
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from soap.data import load, loading
from soap.data.sources import MINI
from soap.errors import FileError

# Taken once from the files built from the full MNIST.
FACTS = {
    "train": (10_000, "a51b5edda6263cfcd4d4b4600fa13dce0f070db1a950c559f62105bd381751a1"),
    "test": (2_000, "d76d28da9fd1ac1121d1f8aa18730d2a615280047fdcf0cb90fc59211af82edd"),
}
FILES = {
    "test-images-idx3-ubyte.gz": "913a1c7c8d64c4073bc6cfc024e3039756af74750888c8f56040a0c9117d3b37",
    "test-labels-idx1-ubyte.gz": "c47f30655d07957f99dcf57d76c2af0e71030c0ffe65dd22b8fcebc3f8441581",
    "train-images-idx3-ubyte.gz": "8df33b0abaa5273bc12f4015666ad8155f2b2d0d08e0b6592a11428ff165f1a3",
    "train-labels-idx1-ubyte.gz": "f58eb5ac6c74b2163b8be1b4d3ec653ec4e3fc338ec16b09a19b0549fe77720a",
}


@pytest.mark.parametrize("split", ["train", "test"])
def test_known_facts(split: str) -> None:
    data = load("mnist-mini", split)
    count, sha256 = FACTS[split]
    assert (len(data), data.sha256) == (count, sha256)
    assert (data.name, data.split, data.classes) == ("mnist-mini", split, tuple("0123456789"))
    assert data.x.shape == (count, 1, 28, 28)
    assert data.x.min() == 0
    assert data.x.max() == 1
    assert torch.equal(data.y, torch.arange(count) % 10)
    # Each digit lies in MNIST's frame: 20 x 20 pixels centred by mass, so that the border is blank.
    assert data.x[..., 0, :].max() == 0


def test_pixels_of_single_digits() -> None:
    """Sums of bytes of the first digits, as in the full MNIST (test digit 3 is its first 0, and so on)."""
    data = load("mnist-mini", "test")
    sums = (data.x[:10].flatten(1) * 255).round().sum(1).int().tolist()
    assert sums == [
        37014,
        9871,
        28850,
        35433,
        19237,
        30734,
        27735,
        18454,
        32081,
        21062,
    ]


def test_files_are_small_and_pinned() -> None:
    files = {path.name: path.read_bytes() for path in Path(MINI.folder).iterdir()}
    assert sum(map(len, files.values())) < 2_500_000
    assert {name: hashlib.sha256(files[name]).hexdigest() for name in files if name.endswith(".gz")} == FILES
    licence = files["LICENSE.txt"].decode()
    assert "Attribution-Share Alike 3.0" in licence
    assert "Yann LeCun" in licence
    assert "Corinna Cortes" in licence


SCRIPT = Path(__file__).parents[2] / "tools" / "build_mnist_mini.py"


def test_balanced_indices_equal_a_plain_loop() -> None:
    balanced_indices = runpy.run_path(str(SCRIPT))["balanced_indices"]
    labels = np.random.default_rng(0).integers(0, 10, 500).astype(np.uint8)
    wanted = []
    for turn in range(20):
        for digit in range(10):
            wanted.append([place for place, label in enumerate(labels) if label == digit][turn])
    assert balanced_indices(labels, 200).tolist() == wanted
    with pytest.raises(SystemExit, match="fewer than 200"):
        balanced_indices(labels, 2000)


def test_builder_script(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The script on the tiny MNIST: ten digits of each split."""
    (tmp_path / "mnist").mkdir()
    for name, content in tiny["mnist"].files.items():
        (tmp_path / "mnist" / name).write_bytes(content)
    for out in "first", "second":
        (tmp_path / out).mkdir()
        monkeypatch.setattr("soap.data.sources.MINI", replace(MINI, counts={"train": 10, "test": 10}))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path), str(tmp_path / out)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == sorted(file.name for file in MINI.files)
    assert all((tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes() for name in names)
    full = load("mnist", "train", root=tmp_path)
    content = {"train": full.take(10).sha256}
    built = replace(MINI, folder=str(tmp_path / "first"), counts={"train": 10}, content=content)
    monkeypatch.setattr(loading, "MINI", built)
    assert torch.equal(load("mnist-mini", "train").x, full.x[:10])
    assert "train-images-idx3-ubyte.gz" in capsys.readouterr().out


def test_damaged_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the other split are detected by their number, files with other content by their fingerprint."""
    monkeypatch.setattr(loading, "MINI", replace(MINI, folder=str(tmp_path)))
    for wrong, right in zip(MINI.names("train"), MINI.names("test"), strict=True):
        (tmp_path / wrong).write_bytes((Path(MINI.folder) / right).read_bytes())
    with pytest.raises(FileError, match=r"contains 2000 images; expected 10000.*install the package again"):
        load("mnist-mini", "train")
    monkeypatch.setattr(loading, "MINI", replace(MINI, content={"train": "0"}))
    with pytest.raises(FileError, match=r"fingerprint.*install the package again"):
        load("mnist-mini", "train")
