import gzip
from pathlib import Path

import pytest

from soap.data import import_files, load
from soap.errors import FileError, InputError


def put(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def dotted(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name.replace("-idx", ".idx"): content for name, content in files.items()}


def packed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content, 1) for name, content in files.items()}


WAYS = {
    "mnist plain": ("mnist", lambda data: data.files, "."),
    "mnist gzipped anew": ("mnist", lambda data: packed(data.files), "."),
    "mnist dotted": ("mnist", lambda data: dotted(data.files), "."),
    "mnist dotted, gzipped": ("mnist", lambda data: packed(dotted(data.files)), "."),
    "mnist one level down": ("mnist", lambda data: data.files, "raw"),
    "cifar10": ("cifar10", lambda data: data.files, "."),
    "cifar10 one level down": ("cifar10", lambda data: data.files, "cifar-10-batches-bin"),
    "cifar10 archive": ("cifar10", lambda data: data.served, "."),
    "cifar100": ("cifar100", lambda data: data.files, "cifar-100-binary"),
    "cifar100 archive": ("cifar100", lambda data: data.served, "."),
}


@pytest.mark.parametrize(("name", "files", "where"), WAYS.values(), ids=WAYS.keys())
def test_import(tiny, tmp_path: Path, name: str, files, where: str) -> None:
    put(files(tiny[name]), tmp_path / "have" / where)
    put({"unrelated.txt": b""}, tmp_path / "have" / "another")
    before = {path: path.read_bytes() for path in (tmp_path / "have").rglob("*") if path.is_file()}
    folder = import_files(name, tmp_path / "have", root=tmp_path / "root")
    assert folder == tmp_path / "root" / tiny[name].source.folder
    assert content(folder) == tiny[name].files
    assert len(load(name, root=tmp_path / "root")) == tiny[name].source.counts["test"]
    assert {path: path.read_bytes() for path in (tmp_path / "have").rglob("*") if path.is_file()} == before


def test_import_in_place(tiny, tmp_path: Path) -> None:
    put(tiny["cifar10"].files, tmp_path / "cifar-10-batches-bin")
    folder = import_files("cifar10", tmp_path, root=tmp_path)
    assert content(folder) == tiny["cifar10"].files


def change_byte(files: dict[str, bytes], name: str, place: int, value: int) -> dict[str, bytes]:
    changed = bytearray(files[name])
    changed[place] = value
    return {**files, name: bytes(changed)}


DAMAGED = {
    "last file changed": ("cifar10", lambda f: change_byte(f, "test_batch.bin", 5, 7), "test_batch.bin: sha256 is"),
    "file cut": (
        "cifar10",
        lambda f: f | {"data_batch_3.bin": f["data_batch_3.bin"][:-1]},
        "has 12291 bytes",
    ),
    "file too long": ("cifar10", lambda f: f | {"data_batch_3.bin": f["data_batch_3.bin"] + b"."}, "more than 12292"),
    "mnist changed": ("mnist", lambda f: change_byte(f, "t10k-labels-idx1-ubyte", 9, 0), "sha256 is"),
    "mnist gzip cut": ("mnist", lambda f: {k: v[:-9] for k, v in packed(f).items()}, "gzip stream is damaged"),
    "mnist other gzip": ("mnist", lambda f: {k: packed({"a": b"?"})["a.gz"] for k in packed(f)}, "has 1 bytes"),
    "label out of range": ("cifar100", lambda f: change_byte(f, "test.bin", 1, 100), "record 0 has label 100"),
    "archive changed": (
        "cifar10",
        lambda f: {"cifar-10-binary.tar.gz": b"?"},
        "cifar-10-binary.tar.gz: sha256 is",
    ),
    "file missing": (
        "cifar10",
        lambda f: {k: f[k] for k in list(f)[:-1]},
        "does not contain cifar10; expected data",
    ),
    "nothing": ("mnist", lambda f: {}, "does not contain mnist"),
}


@pytest.mark.parametrize(("name", "damage", "says"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_files_leave_the_root_unchanged(tiny, tmp_path: Path, name: str, damage, says: str) -> None:
    put(damage(tiny[name].files), tmp_path / "have")
    old = put({"old": b"here before"}, tmp_path / "root" / tiny[name].source.folder)
    with pytest.raises(FileError, match=says):
        import_files(name, tmp_path / "have", root=tmp_path / "root")
    assert content(old) == {"old": b"here before"}
    with pytest.raises(FileError, match=says):
        import_files(name, tmp_path / "have", root=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_bad_arguments(tiny, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown published data set 'minst'; did you mean mnist"):
        import_files("minst", tmp_path)
    with pytest.raises(FileError, match="absent: no such file"):
        import_files("mnist", tmp_path / "absent", root=tmp_path)
    put(tiny["mnist"].files, tmp_path / "have")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="a part of the path is a file"):
        import_files("mnist", tmp_path / "have", root=tmp_path / "file")
