"""`load`, `root` and `status` on published data sets, with tiny stand-ins for their files."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from soap.data import load, root, status
from soap.data.sources import SOURCES
from soap.errors import FileError, InputError


def put(tiny, folder: Path, name: str) -> Path:
    target = folder / tiny[name].source.folder
    target.mkdir(parents=True)
    for file, content in tiny[name].files.items():
        (target / file).write_bytes(content)
    return target


SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("split", ["train", "test"])
def test_load(tiny, tmp_path: Path, name: str, split: str) -> None:
    put(tiny, tmp_path, name)
    data, source = load(name, split, root=tmp_path), tiny[name].source
    assert data.x.shape == (source.counts[split], *SHAPES[name])
    assert (data.name, data.split, data.classes) == (name, split, source.classes)
    # Every pixel and label, against the bytes of the files laid end to end.
    raw = b"".join(tiny[name].files[file.name] for file in source.files if file.split == split)
    if name == "mnist":
        count = source.counts[split]
        pixels, labels = raw[16 : 16 + 784 * count], raw[-count:]
    else:
        head = 1 if name == "cifar10" else 2
        records = np.frombuffer(raw, np.uint8).reshape(-1, head + 3072)
        pixels, labels = records[:, head:].tobytes(), records[:, head - 1].tobytes()
    assert torch.equal((data.x * 255).round().byte().flatten(), torch.tensor(list(pixels), dtype=torch.uint8))
    assert data.y.tolist() == list(labels)


def test_order_of_training_files(tiny, tmp_path: Path) -> None:
    put(tiny, tmp_path, "cifar10")
    first = np.frombuffer(tiny["cifar10"].files["data_batch_1.bin"], np.uint8)[0::3073]
    assert load("cifar10", "train", root=tmp_path).y[:4].tolist() == first.tolist()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_mnist_under_its_other_names(tiny, tmp_path: Path, packed: bool, dotted: bool) -> None:
    wanted = load("mnist", root=put(tiny, tmp_path / "plain", "mnist").parent).sha256
    (tmp_path / "mnist").mkdir()
    for name, content in tiny["mnist"].files.items():
        spelled = (name.replace("-idx", ".idx") if dotted else name) + (".gz" if packed else "")
        (tmp_path / "mnist" / spelled).write_bytes(gzip.compress(content) if packed else content)
    assert load("mnist", root=tmp_path).sha256 == wanted


def test_content_must_match_the_pinned_fingerprint(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put(tiny, tmp_path, "cifar10")
    right = load("cifar10", root=tmp_path).sha256
    monkeypatch.setitem(SOURCES, "cifar10", replace(tiny["cifar10"].source, content={"test": right}))
    assert load("cifar10", root=tmp_path).sha256 == right
    content = bytearray(tiny["cifar10"].files["test_batch.bin"])
    content[100] ^= 1
    (folder / "test_batch.bin").write_bytes(content)
    with pytest.raises(FileError, match=f"expected {right}.*soap data download cifar10"):
        load("cifar10", root=tmp_path)


def test_cut_at_the_end_of_a_record(tiny, tmp_path: Path) -> None:
    folder = put(tiny, tmp_path, "cifar10")
    (folder / "data_batch_5.bin").write_bytes(tiny["cifar10"].files["data_batch_5.bin"][:-3073])
    with pytest.raises(FileError, match="contains 19 images; expected 20"):
        load("cifar10", "train", root=tmp_path)


def test_missing_files_say_what_to_do(tiny, tmp_path: Path) -> None:
    folder = put(tiny, tmp_path, "cifar10")
    (folder / "data_batch_2.bin").unlink()
    assert len(load("cifar10", "test", root=tmp_path)) == 4
    with pytest.raises(FileError, match=r"missing data_batch_2.bin\. .*soap data download cifar10.*soap data import"):
        load("cifar10", "train", root=tmp_path)


BAD = {
    "misspelt": ("cifar01", InputError, "unknown data set 'cifar01'; did you mean cifar10"),
    "nothing like it": ("zzzz", InputError, "known: cifar10, cifar100, mnist, mnist-mini"),
    "no such path": ("absent/pets", FileError, "absent/pets: no such file or folder"),
    "no possible path": ("x" * 5000, FileError, "x+: File name too long"),
    "no such Path": (Path("pets"), FileError, "pets: no such file or folder"),
}


@pytest.mark.parametrize(("name", "kind", "says"), BAD.values(), ids=BAD.keys())
def test_unknown_names(name: str | Path, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        load(name)


def test_other_files_and_splits(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(InputError, match="file of another kind"):
        load(tmp_path / "data.csv")
    with pytest.raises(InputError, match="unknown split 'tests'; did you mean test"):
        load("mnist-mini", "tests")


def test_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOAP_DATA", str(tmp_path / "env"))
    assert root(tmp_path / "given") == tmp_path / "given"
    assert root() == tmp_path / "env"
    monkeypatch.setenv("SOAP_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    for platform, wanted in ("linux", "xdg/soap"), ("darwin", "Library/Caches/soap"), ("win32", "local/soap"):
        monkeypatch.setattr("sys.platform", platform)
        assert root() == tmp_path / wanted
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert root() == tmp_path / ".cache" / "soap"
    assert root(Path("~/data")) == tmp_path / "data"


def test_root_of_a_user_without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOAP_DATA", raising=False)
    with pytest.raises(FileError, match=r"Give the data folder with --data-root or \$SOAP_DATA"):
        root(Path("~nobody-of-this-name/data"))


def test_the_environment_variable_selects_the_data_folder(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tiny, tmp_path, "mnist")
    monkeypatch.setenv("SOAP_DATA", str(tmp_path))
    assert len(load("mnist")) == 10


def test_status(tiny, tmp_path: Path) -> None:
    folder = put(tiny, tmp_path, "mnist")
    (put(tiny, tmp_path, "cifar10") / "test_batch.bin").unlink()
    seen = {presence.name: presence for presence in status(tmp_path)}
    assert list(seen) == ["mnist-mini", "mnist", "cifar10", "cifar100"]
    assert seen["mnist-mini"].bundled
    assert seen["mnist-mini"].present
    assert seen["mnist-mini"].counts == {"train": 10_000, "test": 2_000}
    assert (seen["mnist"].folder, seen["mnist"].present, seen["mnist"].bundled) == (folder, True, False)
    assert seen["cifar10"].missing == ("test_batch.bin",)
    assert not seen["cifar10"].present
    assert seen["cifar100"].missing == ("train.bin", "test.bin")


def test_the_table_of_sources() -> None:
    """Sizes follow from the formats; checksums are the published ones."""
    prefixes = ["cee91656", "a591ca11", "bbe85965", "014e562d", "755304fc", "8e2eb146"]
    assert [file.sha256[:8] for file in SOURCES["cifar10"].files if file.sha256] == prefixes
    for name, record in ("cifar10", 3073), ("cifar100", 3074):
        for split, count in SOURCES[name].counts.items():
            assert sum(file.size for file in SOURCES[name].files if file.split == split) == count * record
    for split, count in SOURCES["mnist"].counts.items():
        assert [f.size for f in SOURCES["mnist"].files if f.split == split] == [16 + 784 * count, 8 + count]
    for source in SOURCES.values():
        assert all(address.startswith("https://") for address in source.mirrors)
        for remote in source.remotes:
            assert re.fullmatch("[0-9a-f]{64}", remote.sha256)
        assert {file for remote in source.remotes for file in source.inside(remote)} == set(source.files)
