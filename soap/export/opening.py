"""Exported files, found whole and ready to run by onnxruntime."""

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from soap._files import atomic
from soap.errors import FileError, InputError

MANIFEST = "manifest.json"
SCHEMA = "soap-export/1"

Array = npt.NDArray[np.float32]


def needed(*modules: str) -> list[Any]:
    """These modules of the extra `onnx`, or what to install."""
    try:
        return [importlib.import_module(name) for name in modules]
    except ImportError as error:
        raise InputError(
            f"ONNX files need the package {error.name}, which is not here; pip install 'soap-defense[onnx]'."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A folder of `soap export`: its manifest, and for each part a session of onnxruntime."""

    manifest: Mapping[str, Any]
    sessions: Mapping[str, Any]

    def run(self, part: str, *inputs: Array) -> Sequence[Array]:
        """The outputs of a part, in the manifest's order."""
        names = self.manifest["parts"][part]["inputs"]
        outputs: Sequence[Array] = self.sessions[part].run(None, dict(zip(names, inputs, strict=True)))
        return outputs


def opened(folder: Path) -> Opened:
    """All parts that the folder's manifest names, with as many threads as torch has; each must be as written."""
    (runtime,) = needed("onnxruntime")
    path = folder / MANIFEST
    with atomic.file_errors(path):
        text = path.read_bytes()
    try:
        manifest = json.loads(text)
        if manifest["schema"] != SCHEMA:
            raise ValueError(f"its schema is {manifest['schema']!r}, want {SCHEMA!r}")
        described = {name: (_beside(part["file"]), part["sha256"]) for name, part in manifest["parts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{path}: not a manifest of `soap export` ({error}); export again.") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    sessions = {}
    for name, (file, wanted) in described.items():
        got = atomic.sha256(folder / file)
        if got != wanted:
            raise FileError(f"{folder / file}: sha256 is {got}, but {MANIFEST} has {wanted}; export again.")
        sessions[name] = runtime.InferenceSession(folder / file, options, providers=["CPUExecutionProvider"])
    return Opened(manifest=manifest, sessions=sessions)


def _beside(file: str) -> str:
    """The name of a file in the manifest's own folder: a path could lead to a device, and never end."""
    if not re.fullmatch(r"\w[\w.-]*", file):
        raise ValueError(f"it names the file {file!r:.60}")
    return file
