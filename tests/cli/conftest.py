"""The fixture `run`, and a few bundled digits as files."""

from pathlib import Path

import numpy as np
import pytest
from command_line import run
from PIL import Image

import soap

__all__ = ["archive", "digits", "run", "some"]


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
