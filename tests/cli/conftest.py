"""The command line as a user calls it, in an empty folder, and a few bundled digits as files."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import soap
from soap.cli import main


@dataclass
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("evaluate", "mnist-fcn-dr")` in a folder of its own, with no data but the bundled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOAP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SOAP_COMMIT", "test")  # spares asking git for every row

    def call(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture(scope="session")
def some() -> soap.data.Dataset:
    """Twelve digits: 0, 1, ..., 9, 0, 1."""
    return soap.data.load("mnist-mini").take(12)


@pytest.fixture
def digits(tmp_path: Path, some: soap.data.Dataset) -> Path:
    """Three digits as a folder of class folders, 8-bit PNG."""
    folder = tmp_path / "digits"
    for place in range(3):
        (folder / str(place)).mkdir(parents=True)
        pixels = (some.x[place, 0] * 255).round().byte().numpy()
        Image.fromarray(pixels).save(folder / str(place) / "digit.png")
    return folder


@pytest.fixture
def archive(tmp_path: Path, some: soap.data.Dataset) -> Path:
    """Four digits as an .npz with their labels."""
    path = tmp_path / "four.npz"
    np.savez(path, x=some.x[:4].numpy(), y=some.y[:4].numpy())
    return path
