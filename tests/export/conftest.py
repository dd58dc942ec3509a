"""Exported models, each exported once per worker because exports are slow."""

from pathlib import Path

import pytest
import torch
from command_line import run
from torch import Tensor

import soap

pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from soap.onnx_export import ExportedFiles, export

__all__ = ["classifier_folder", "fcn", "fcn_files", "run", "some"]


@pytest.fixture(scope="session")
def fcn() -> soap.JointModel:
    return soap.load("mnist-fcn-dr")


@pytest.fixture(scope="session")
def fcn_files(fcn: soap.JointModel, tmp_path_factory: pytest.TempPathFactory) -> ExportedFiles:
    """All parts; with two long steps images choose several radii of the grid, and tracing is short."""
    return export(fcn, tmp_path_factory.mktemp("fcn"), steps=2, step_size=0.2)


@pytest.fixture(scope="session")
def some(fcn: soap.JointModel) -> Tensor:
    """Twenty digits, clean and attacked by PGD."""
    digits = soap.data.load("mnist-mini").take(20)
    attacked = soap.attacks.PGD(eps=0.3, step_size=0.05, steps=8)(fcn, digits.x, digits.y)
    return torch.cat([digits.x, attacked])


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported classifier of a model without a task."""
    return export(soap.load("mnist-fcn-no-def"), tmp_path_factory.mktemp("no-def")).folder
