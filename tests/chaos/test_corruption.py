"""Every truncated file and every flipped bit is detected; the error names the file, and its content is not used."""

import dataclasses
import logging
import shutil

import numpy as np
import pytest
import torch
from counting import amount, count
from damage import flipped, truncated
from killable_runs import EPOCHS, evaluate, images, train, training_content

import soap
from soap import data as library
from soap import hub, recipes, zoo
from soap._files import tensor_files
from soap.data import loading
from soap.data.dataset import fingerprint, make_dataset
from soap.data.folder import save_folder
from soap.data.sources import MINI, SOURCES
from soap.errors import FileError, SoapError
from soap.evaluation.run_folder import AttackedBatch, RunFolder
from soap.onnx_export import MANIFEST, export, open_onnx
from soap.report.hub_folder import write_hub_folder
from soap.results import Store
from soap.training import checkpoint

pytestmark = pytest.mark.chaos


def read_damaged(path, read, name, damage, harmless=lambda result: False):
    """Return (trials, failures): `read` must raise a SoapError that contains `name` for every damaged copy.

    harmless: whether a result that `read` returns nevertheless is that of the intact file.
    """
    intact, trials, failures = path.read_bytes(), 0, []
    for what, content in damage(intact):
        path.write_bytes(content)
        trials += 1
        try:
            if not harmless(read()):
                failures.append(f"{what}: not detected")
        except SoapError as error:
            if name not in str(error):
                failures.append(f"{what}: {error} does not name {name}")
        except Exception as error:
            failures.append(f"{what}: {error!r}")
    path.write_bytes(intact)
    read()
    return trials, failures


DAMAGE = pytest.mark.parametrize("damage", [truncated, flipped], ids=["truncated", "flipped"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A training, an evaluation, and the files of a suite run."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "training")
    evaluate(folder / "evaluation")
    suite = RunFolder(folder / "suite")
    suite.begin({"data": {"n": 8}, "batch_size": 8, "attempts": [{"name": "first"}, {"name": "second"}], "seed": 0})
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


@DAMAGE
@pytest.mark.parametrize("name", ["last.safetensors", checkpoint.NAME])
def test_damaged_weights_and_checkpoints_are_refused(copied, name, damage):
    path = copied / "training" / name
    trials, failures = read_damaged(path, lambda: tensor_files.load_tensors(path), name, damage)
    count(f"{name} {damage.__name__}: refused, the error names the file", trials, failures)


@pytest.fixture
def snapshot(tmp_path, monkeypatch):
    """The folder of a model from the hub at one commit, as `hub.fetch` keeps it."""
    folder = tmp_path / "hub" / "me--model" / COMMIT
    write_hub_folder("mnist-fcn-no-def", folder, "me/model")
    monkeypatch.setenv("SOAP_DATA", str(tmp_path))
    return folder


COMMIT = 40 * "a"


@DAMAGE
@pytest.mark.parametrize("name", [hub.WEIGHTS, hub.CONFIG])
def test_damaged_files_of_a_hub_snapshot_are_refused(snapshot, name, damage):
    trials, failures = read_damaged(snapshot / name, lambda: zoo.load(f"hf://me/model@{COMMIT}"), name, damage)
    count(f"{name} of a hub snapshot {damage.__name__}: refused, the error names the file", trials, failures)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of an exported classifier; damage of a part is found before it is opened."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    folder = tmp_path_factory.mktemp("onnx")
    export(soap.load("mnist-fcn-no-def"), folder)
    return folder


@DAMAGE
@pytest.mark.parametrize("name", [MANIFEST, "classifier.onnx"])
def test_damaged_files_of_an_export_are_refused(exported, tmp_path, name, damage):
    folder = shutil.copytree(exported, tmp_path / "onnx")
    trials, failures = read_damaged(folder / name, lambda: open_onnx(folder), name, damage)
    count(f"{name} of an export {damage.__name__}: refused, the error names the file", trials, failures)


def test_run_with_a_damaged_checkpoint_uses_the_previous_one_and_ends_the_same(copied):
    """Only a few, because each is a training run."""
    out = copied / "training"
    expected = training_content(out)
    # One epoch earlier, as if the run had been killed there.
    shutil.copy(out / checkpoint.PREVIOUS, out / checkpoint.NAME)
    saved = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    failures = []
    few = amount(3, 50)
    damaged = [*truncated(saved[checkpoint.NAME])][:few] + [*flipped(saved[checkpoint.NAME])][:few]
    for what, content in damaged:
        for name, old in saved.items():
            (out / name).write_bytes(old)
        (out / checkpoint.NAME).write_bytes(content)
        train(out)
        if training_content(out) != expected:
            failures.append(f"{what}: another result")
    count("a damaged checkpoint: training continues from the previous one with the same result", len(damaged), failures)
    assert expected[checkpoint.NAME][2]["step"] == EPOCHS * (len(images()) - 4 >> 3)


SUITE = {
    "clean/0000.npz": lambda folder: folder.read_batch(None, 0),
    "attempts/01/0000.npz": lambda folder: folder.read_batch(1, 0),
    "run.json": lambda folder: RunFolder(folder.path).plan(),
    "facts/gradient.json": lambda folder: folder.read_fact("gradient"),
    "seal.json": RunFolder.read_fingerprints,
}


@DAMAGE
@pytest.mark.parametrize("name", SUITE)
def test_damaged_files_of_a_suite_run_are_refused(copied, name, damage):
    folder = RunFolder(copied / "suite")
    trials, failures = read_damaged(folder.path / name, lambda: SUITE[name](folder), name, damage)
    count(f"{name} of a suite run {damage.__name__}: refused, the error names the file", trials, failures)


def test_truncated_result_store_keeps_the_rows_before_the_end(copied, caplog):
    """A truncation inside a row is logged; one between two rows gives a store with fewer rows."""
    store = Store(copied / "evaluation" / "rows.jsonl")
    whole, rows, failures, trials = store.path.read_bytes(), store.read(), [], 0
    for what, content in truncated(whole):
        store.path.write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            kept = store.read()
        trials += 1
        if kept != rows[: content.count(b"\n")]:
            failures.append(f"{what}: other rows than those before the end")
        if bool(caplog.messages) != (not content.endswith(b"\n") and content != b""):
            failures.append(f"{what}: logged {caplog.messages}")
    count("result store truncated: the rows before the end are kept, a partial row is logged", trials, failures)


def test_flipped_bits_in_a_result_store_are_refused(copied, caplog):
    """Except in the last newline, which looks like a truncated row and is logged."""
    store = Store(copied / "evaluation" / "rows.jsonl")
    whole, rows, failures, trials = store.path.read_bytes(), store.read(), [], 0
    for what, content in flipped(whole):
        store.path.write_bytes(content)
        caplog.clear()
        trials += 1
        try:
            if store.read() != rows[:-1] or not caplog.messages or content[:-1] != whole[:-1]:
                failures.append(f"{what}: not detected")
        except FileError as error:
            if "rows.jsonl, line " not in str(error):
                failures.append(f"{what}: {error}")
    count("result store flipped: refused, the error names the line", trials, failures)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """MNIST and CIFAR-10 with 20 random images in their formats, and matching fingerprints in SOURCES."""
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


@DAMAGE
@pytest.mark.parametrize(
    ("name", "file"), [("mnist", "t10k-images-idx3-ubyte"), ("mnist", "t10k-labels-idx1-ubyte"),
                       ("cifar10", "test_batch.bin")],
)  # fmt: skip
def test_damaged_data_files_are_refused(published, name, file, damage):
    folder = SOURCES[name].folder
    path = published / folder / file
    trials, failures = read_damaged(path, lambda: library.load(name, root=published), folder, damage)
    count(f"{name}'s {file} {damage.__name__}: refused, the error names the file", trials, failures)


def equal_to(expected):
    """Return whether a data set has the images and labels of the expected one."""
    return lambda got: torch.equal(got.x, expected.x) and torch.equal(got.y, expected.y)


@DAMAGE
@pytest.mark.parametrize("file", ["test-images-idx3-ubyte.gz", "test-labels-idx1-ubyte.gz"])
def test_damaged_files_of_mnist_mini_are_refused_or_unchanged_in_content(tmp_path, monkeypatch, file, damage):
    """A gzip header has no checksum: a flipped bit in its time, for example, does not change the content."""
    folder = shutil.copytree(MINI.folder, tmp_path / "mini")
    monkeypatch.setattr(loading, "MINI", dataclasses.replace(MINI, folder=str(folder)))
    same = equal_to(library.load("mnist-mini"))
    trials, failures = read_damaged(folder / file, lambda: library.load("mnist-mini"), str(folder), damage, same)
    count(f"mnist-mini's {file} {damage.__name__}: refused and named, or the same content", trials, failures)


@DAMAGE
def test_damaged_npz_files_are_refused_or_unchanged_in_content(tmp_path, damage):
    """Zip and npy have a CRC-32 of the content, but none of times and other fields that are not read."""
    draw, path = np.random.default_rng(0), tmp_path / "own.npz"
    np.savez(path, x=draw.integers(0, 256, (20, 8, 8), np.uint8), y=np.arange(20) % 4)
    same = equal_to(library.load(path))
    trials, failures = read_damaged(path, lambda: library.load(path), path.name, damage, same)
    count(f"own .npz file {damage.__name__}: refused and named, or the same content", trials, failures)


@DAMAGE
def test_damaged_png_files_are_refused_or_unchanged_in_content(tmp_path, damage):
    draw = np.random.default_rng(0)
    values = draw.integers(0, 256, (3, 3, 32, 32), np.uint8)
    files = save_folder(make_dataset("own", "test", values, np.array([0, 1, 1]), ("a", "b")), tmp_path / "own")
    same = equal_to(library.load(tmp_path / "own"))
    trials, failures = read_damaged(files[1], lambda: library.load(tmp_path / "own"), files[1].name, damage, same)
    count(f"own PNG file {damage.__name__}: refused and named, or the same content", trials, failures)


def values_of(recipe):
    """Return what a recipe sets, without its text."""
    return dataclasses.replace(recipe, text="")


def can_be_built(recipe):
    """Return whether the options of the network are valid, too."""
    try:
        (recipes.build if isinstance(recipe, recipes.Recipe) else recipes.generative.build)(recipe)
    except SoapError:
        return False
    return True


@DAMAGE
def test_damaged_recipes_are_refused_or_read_as_they_are(tmp_path, damage):
    """A recipe is text that people write, without a checksum: what a changed digit sets is valid and not detected.

    Whatever is read is checked as any recipe: its TOML, its keys and the types of its values when it is read, the
    options of the network when it is built.
    """
    trials, failures = 0, []
    refused, unbuilt, same, other = "refused, file named", "refused when built", "same values", "another valid value"
    read = {refused: 0, unbuilt: 0, same: 0, other: 0}
    for name in ("mnist-fcn-dr", "cifar10-resnet18-pgd-at", "cifar10-resnet18-lc"):
        path = tmp_path / f"{name}.toml"
        expected = values_of(recipes.read(name))
        for what, content in damage(recipes.read(name).text.encode()):
            path.write_bytes(content)
            trials += 1
            try:
                found = recipes.find(path)
                read[same if values_of(found) == expected else other if can_be_built(found) else unbuilt] += 1
                if found.text.encode() != content.replace(b"\r\n", b"\n").replace(b"\r", b"\n"):
                    failures.append(f"{name}, {what}: the text is not that of the file")
            except SoapError as error:
                read[refused] += 1
                if path.name not in str(error):
                    failures.append(f"{name}, {what}: {error} does not name the file")
            except Exception as error:
                failures.append(f"{name}, {what}: {error!r}")
    count(f"recipe {damage.__name__}: refused and named, or read as it now is", trials, failures, read)
