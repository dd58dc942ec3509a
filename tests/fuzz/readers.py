"""The readers of untrusted files and request bodies, with assertions about the content they accept."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from soap import auxiliary, recipes, zoo
from soap.bench.results import read as read_timings
from soap.data import load
from soap.data.binary_files import read_cifar10, read_cifar100, read_idx, read_mnist
from soap.data.downloads import unpack
from soap.data.picture_files import read_files
from soap.data.sources import SOURCES
from soap.errors import SoapError
from soap.evaluation.run_folder import RunFolder
from soap.onnx_export.onnx_files import open_onnx
from soap.results import Store
from soap.serve import Limits
from soap.serve.request_images import decode_image
from soap.training import checkpoint


class ModelStub(nn.Module):
    """The attributes of a model that the image readers use."""

    classes = 4
    name = "model"

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.input_shape = shape
        self.weight = nn.Parameter(torch.zeros(1))


def images(path: Path) -> None:
    values = read_idx(path, 3)
    assert values.dtype == np.uint8
    assert values.ndim == 3
    assert 0 < values.size < 2048 * path.stat().st_size


def digits(path: Path) -> None:
    """Read the file as images with valid labels, and as labels with valid images."""
    for name, content in (("images", b"\0\0\x08\x03" + bytes((0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28)) + bytes(2 * 784)),
                          ("labels", b"\0\0\x08\x01\0\0\0\x02\x05\x09")):  # fmt: skip
        good = path.with_name(name)
        good.write_bytes(content)
        pair = (good, path) if name == "images" else (path, good)
        try:
            pixels, labels = read_mnist(pair)
        except SoapError as error:
            problem = error
            continue
        assert pixels.shape == (len(labels), 1, 28, 28)
        assert labels.max() < 10
        return
    raise problem


def records10(path: Path) -> None:
    _records(*read_cifar10([path]), classes=10, size=path.stat().st_size)


def records100(path: Path) -> None:
    _records(*read_cifar100([path, path]), classes=100, size=2 * path.stat().st_size)


def _records(pixels: np.ndarray, labels: np.ndarray, *, classes: int, size: int) -> None:
    assert pixels.shape == (len(labels), 3, 32, 32)
    assert pixels.size < size
    assert labels.max() < classes


PACKED = replace(SOURCES["cifar10"].files[-1], size=3073, sha256=hashlib.sha256(bytes(3073)).hexdigest())
"""The only file to unpack from an archive."""


def archive(path: Path) -> None:
    """Unpacking writes nothing outside the target folder, whether it succeeds or not."""
    target = path.parent / "unpacked"
    target.mkdir(exist_ok=True)
    try:
        unpack(path, (PACKED,), SOURCES["cifar10"], target)
        assert (target / PACKED.name).stat().st_size == PACKED.size
    finally:
        assert {entry.name for entry in path.parent.iterdir()} == {path.name, target.name}
        assert {entry.name for entry in target.iterdir()} <= {PACKED.name}


def classifier(path: Path) -> None:
    _finite(zoo.load(path), path)


def prior(path: Path) -> None:
    _finite(zoo.load_prior(path), path)


def _finite(model: nn.Module, path: Path) -> None:
    state = model.state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    assert sum(tensor.numel() for tensor in state.values()) <= path.stat().st_size
    assert not model.training


def small_run() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimiser with a few parameters."""
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


IDENTITY = {"recipe": "small", "seed": 0}


def training(path: Path) -> None:
    model, optimiser = small_run()
    extra, state = checkpoint.restore(path.parent, model, optimiser, identity=IDENTITY)
    assert isinstance(state, dict)
    assert all(torch.isfinite(tensor).all() for tensor in (*model.parameters(), *extra.values()))


def small_classifier() -> nn.Module:
    """Return a module as a user would provide it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))


def adopted(path: Path) -> None:
    model = auxiliary.restore(path, small_classifier())
    assert model.input_shape == (3, 2, 2)
    assert math.isfinite(model.alpha)


def recipe(path: Path) -> None:
    found = recipes.find(path)
    assert found.name
    assert "/" not in found.name
    assert found.training.epochs >= 1
    assert math.isfinite(found.training.lr)


def rows(path: Path) -> None:
    for row in Store(path).read():
        low, high = row.interval
        assert 0 <= low <= row.accuracy <= high <= 1
        assert math.isfinite(row.seconds)
        assert all(math.isfinite(value) for value in row.measures.values())
        assert len(row.key) == 16
        f"{row.model} {row.attack.name} {row.provenance.device} {row.provenance.date}".encode()


def timings(path: Path) -> None:
    for row in read_timings(path):
        assert row["schema"] == "soap-bench/2"


def manifest(path: Path) -> None:
    """The parts that it names do not exist here, so a manifest with parts is refused."""
    assert open_onnx(path.parent).sessions == {}


def grey_body(path: Path) -> None:
    _body(decode_image(path.read_bytes(), "image/png", (1, 28, 28), Limits(), invert=False), 1, 28)


def coloured_body(path: Path) -> None:
    _body(decode_image(path.read_bytes(), "image/png", (3, 32, 32), Limits(), invert=True), 3, 32)


def json_body(path: Path) -> None:
    _body(decode_image(path.read_bytes(), "application/json", (1, 4, 4), Limits(), invert=False), 1, 4)


def _body(x: torch.Tensor, channels: int, side: int) -> None:
    assert x.shape == (channels, side, side)
    assert x.dtype == torch.float32
    assert 0 <= float(x.min()) <= float(x.max()) <= 1


def picture_folder(path: Path) -> None:
    data = load(path.parents[1])
    assert data.x.shape[1] in (1, 3)
    assert 0 <= float(data.x.min()) <= float(data.x.max()) <= 1


def own_picture(path: Path) -> None:
    (found,) = read_files([path], ModelStub(3, 32, 32), resize=True)
    _body(found.x[0], 3, 32)


def data_archive(path: Path) -> None:
    data = load(path)
    assert len(data.x) == len(data.y) > 0
    assert 0 <= float(data.x.min()) <= float(data.x.max()) <= 1
    assert 0 <= int(data.y.min()) <= int(data.y.max()) < len(data.classes)


def own_archive(path: Path) -> None:
    (found,) = read_files([path], ModelStub(1, 2, 2), resize=False)
    assert found.x.shape[1:] == (1, 2, 2)


def batch_of_a_run(path: Path) -> None:
    found = RunFolder(path.parents[1]).read_batch(None, 0)
    assert found is not None
    assert math.isfinite(found.seconds)
