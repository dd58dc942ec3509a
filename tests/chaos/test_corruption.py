"""Cut off anywhere or with any bit flipped: every file is refused by name, and nothing of it is used."""

import dataclasses
import logging
import shutil

import numpy as np
import pytest
import torch
from counting import amount, count
from damage import cut_off, flipped
from rehearsals import EPOCHS, evaluate, images, train, trained

from soap import data as library
from soap._files import tensor_files
from soap.data.dataset import fingerprint
from soap.data.sources import SOURCES
from soap.errors import FileError
from soap.evaluation.run_folder import AttackedBatch, RunFolder
from soap.results import Store
from soap.training import checkpoint

pytestmark = pytest.mark.chaos


def refused(path, read, named, damages):
    """(trials, failures): `read` must raise a FileError that says `named` for every damage to the file at `path`."""
    whole, trials, failures = path.read_bytes(), 0, []
    for what, content in damages(whole):
        path.write_bytes(content)
        trials += 1
        try:
            read()
            failures.append(f"{what}: not noticed")
        except FileError as error:
            if named not in str(error):
                failures.append(f"{what}: {error} does not name {named}")
        except Exception as error:
            failures.append(f"{what}: {error!r}")
    path.write_bytes(whole)
    read()  # whole again, it is taken
    return trials, failures


DAMAGES = pytest.mark.parametrize("damages", [cut_off, flipped], ids=["cut off", "flipped"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A training, an evaluation, and the files of a run of the suite."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "training")
    evaluate(folder / "evaluation")
    suite = RunFolder(folder / "suite")
    suite.begin({"data": {"n": 8}, "batch": 8, "attempts": [{"name": "first"}, {"name": "second"}], "seed": 0})
    noise, labels = np.random.default_rng(0).random((8, 1, 8, 8), np.float32), np.arange(8)
    for attempt in (None, 0, 1):
        suite.write_batch(
            attempt, 0, AttackedBatch(rows=labels, x=noise, defended=labels % 3, bare=labels % 2, seconds=0.25)
        )
    suite.write_fact("gradient", {"images": 8, "attacked": {"missing": 0, "cut": False}, "moved": 1.25e-7})
    suite.write_fingerprints({"clean/0000": 64 * "a"})
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    return shutil.copytree(runs, tmp_path / "copy")


@DAMAGES
@pytest.mark.parametrize("name", ["last.safetensors", checkpoint.NAME])
def test_weights_and_checkpoints(copied, name, damages):
    path = copied / "training" / name
    trials, failures = refused(path, lambda: tensor_files.load_tensors(path), name, damages)
    count(f"{name} {damages.__name__.replace('_', ' ')}: refused by name", trials, failures)


def test_a_run_whose_checkpoint_is_damaged_falls_back_and_ends_the_same(copied):
    """A few only: each is a training of its own."""
    out = copied / "training"
    wanted = trained(out)
    # One epoch back, as if the run had been killed there.
    shutil.copy(out / checkpoint.PREVIOUS, out / checkpoint.NAME)
    again = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    failures = []
    few = amount(3, 50)
    damaged = [*cut_off(again[checkpoint.NAME])][:few] + [*flipped(again[checkpoint.NAME])][:few]
    for what, content in damaged:
        for name, old in again.items():
            (out / name).write_bytes(old)
        (out / checkpoint.NAME).write_bytes(content)
        train(out)
        if trained(out) != wanted:
            failures.append(f"{what}: another end")
    count("a damaged checkpoint: back to the one before it, and the same end", len(damaged), failures)
    assert wanted[checkpoint.NAME][2]["step"] == EPOCHS * (len(images()) - 4 >> 3)


SUITE = {
    "clean/0000.npz": lambda folder: folder.read_batch(None, 0),
    "attempts/01/0000.npz": lambda folder: folder.read_batch(1, 0),
    "run.json": lambda folder: RunFolder(folder.path).plan(),
    "facts/gradient.json": lambda folder: folder.read_fact("gradient"),
    "seal.json": RunFolder.read_fingerprints,
}


@DAMAGES
@pytest.mark.parametrize("name", SUITE)
def test_files_of_the_suite(copied, name, damages):
    folder = RunFolder(copied / "suite")
    trials, failures = refused(folder.path / name, lambda: SUITE[name](folder), name, damages)
    count(f"{name} of the suite {damages.__name__.replace('_', ' ')}: refused by name", trials, failures)


def test_result_stores_cut_off(copied, caplog):
    """Rows before the cut are kept; a cut inside a row is said, and one between rows is a store with fewer rows."""
    store = Store(copied / "evaluation" / "rows.jsonl")
    whole, rows, failures, trials = store.path.read_bytes(), store.read(), [], 0
    for what, content in cut_off(whole):
        store.path.write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            kept = store.read()
        trials += 1
        if kept != rows[: content.count(b"\n")]:
            failures.append(f"{what}: other rows than those before the cut")
        if bool(caplog.messages) != (not content.endswith(b"\n") and content != b""):
            failures.append(f"{what}: said {caplog.messages}")
    count("result store cut off: the rows before it are kept, half a row is said", trials, failures)


def test_result_stores_flipped(copied, caplog):
    """One flip is no error: that of the last newline, which is a row that was cut off, and is said."""
    store = Store(copied / "evaluation" / "rows.jsonl")
    whole, rows, failures, trials = store.path.read_bytes(), store.read(), [], 0
    for what, content in flipped(whole):
        store.path.write_bytes(content)
        caplog.clear()
        trials += 1
        try:
            if store.read() != rows[:-1] or not caplog.messages or content[:-1] != whole[:-1]:
                failures.append(f"{what}: not noticed")
        except FileError as error:
            if "rows.jsonl, line " not in str(error):
                failures.append(f"{what}: {error}")
    count("result store flipped: refused, its line named", trials, failures)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """MNIST and CIFAR-10 of 20 random images, in their own formats, with the fingerprints that their sources know."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 10, 20, dtype=np.uint8)
    grey, coloured = (draw.integers(0, 256, shape, dtype=np.uint8) for shape in ((20, 28, 28), (20, 3, 32, 32)))
    idx = {
        "t10k-images-idx3-ubyte": b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in grey.shape) + grey.tobytes(),
        "t10k-labels-idx1-ubyte": b"\0\0\x08\x01" + (20).to_bytes(4, "big") + labels.tobytes(),
    }
    binary = b"".join(bytes([y]) + x.tobytes() for x, y in zip(coloured, labels, strict=True))
    for name, parts, values in (
        ("mnist", idx, grey[:, None]), ("cifar10", {"test_batch.bin": binary}, coloured)
    ):  # fmt: skip
        source = SOURCES[name]
        (tmp_path / source.folder).mkdir()
        for file, content in parts.items():
            (tmp_path / source.folder / file).write_bytes(content)
        small = dataclasses.replace(source, counts={"test": 20}, content={"test": fingerprint(values, labels)})
        monkeypatch.setitem(SOURCES, name, small)
    assert torch.equal(library.load("mnist", root=tmp_path).y, torch.from_numpy(labels.astype(np.int64)))
    return tmp_path


@DAMAGES
@pytest.mark.parametrize(
    ("name", "file"), [("mnist", "t10k-images-idx3-ubyte"), ("mnist", "t10k-labels-idx1-ubyte"),
                       ("cifar10", "test_batch.bin")],
)  # fmt: skip
def test_data_files(published, name, file, damages):
    folder = SOURCES[name].folder
    path = published / folder / file
    trials, failures = refused(path, lambda: library.load(name, root=published), folder, damages)
    count(f"{name}'s {file} {damages.__name__.replace('_', ' ')}: refused by name", trials, failures)
