"""An export to ONNX and a download from the hub that may be killed; they need the extras onnx and hub."""

import functools
import os
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from hub_server import REPO, FakeHub
from killable_runs import KillableRun

import soap
from soap.onnx_export import MANIFEST, export, open_onnx
from soap.report.hub_folder import write_hub_folder

MODEL = "mnist-fcn-no-def"
trace = torch.onnx.export
programs: list[Any] = []
"""The traced program of the first export, which forked processes inherit: tracing takes seconds and writes nothing."""


def export_model(out: Path) -> None:
    """Export a classifier, over the files of an earlier attempt."""

    def traced_once(*given: Any, **named: Any) -> Any:
        if not programs:
            programs.append(trace(*given, **named))
        return programs[0]

    with patch.object(torch.onnx, "export", traced_once):
        export(soap.load(MODEL), out, force=True)


def check_export(out: Path) -> None:
    """Check that a manifest exists only with complete files."""
    if (out / MANIFEST).exists():
        open_onnx(out)


@functools.cache
def server() -> FakeHub:
    """Return a running hub with the model; only the process that starts it serves."""
    made = FakeHub()
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        files = write_hub_folder(MODEL, Path(folder), REPO)
        made.commit({name: path.read_bytes() for name, path in files.items()})
    return made


def download_model(out: Path) -> None:
    """Load a model of the hub."""
    from huggingface_hub import constants

    settings = {"HF_ENDPOINT": server().url, "SOAP_DATA": str(out)}
    with patch.dict(os.environ, settings), patch.object(constants, "HF_HUB_DISABLE_XET", True):
        soap.load(f"hf://{REPO}")


def files_of(out: Path) -> dict[str, bytes]:
    """Return all files but the temporary ones of killed processes."""
    found = (path for path in out.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in found}


def check_download(out: Path) -> None:
    """Check that every file is complete under its name."""
    published = server().commits[REPO][-1][1]
    if wrong := [name for name, content in files_of(out).items() if published[Path(name).name] != content]:
        raise AssertionError(f"{out}: {', '.join(wrong)} is not complete")


EXPORT_RUNS = {
    "export": KillableRun(export_model, files_of, check_export),
    "hub download": KillableRun(download_model, files_of, check_download),
}
