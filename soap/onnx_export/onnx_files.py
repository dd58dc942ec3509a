"""ONNX files of a model and its purifier: write them with a manifest, and open them with onnxruntime."""

import importlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from soap import __version__
from soap._files import atomic, checksums
from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel
from soap.balls import Linf
from soap.descent import UNIT, loss_and_gradient
from soap.errors import FileError, InputError, unknown
from soap.evaluation import fingerprint
from soap.onnx_export.tracing import export_problem, trace_batch
from soap.purifiers import SOAP
from soap.shapes import Tensor

PARTS = ("classifier", "loss", "step", "whole")
"""All but the classifier need an auxiliary task."""

EXAMPLE_BATCH = 3
"""Batch size of the example inputs; torch treats 0 and 1 as special sizes."""

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = "soap-export/1"

OPSETS = (18, 23)
"""The oldest and newest version of the ONNX operators that can be written."""

DEFAULT_OPSET = 20

REFUSED_RADII = {
    "oracle": "chooses by the true label, so it is not a defence",
    "min-aux-batch": "makes the result of an image depend on the other images of its batch",
}

Array = npt.NDArray[np.float32]


class ExportPart(NamedTuple):
    """One function to export; `examples` are distinct input tensors of the right shapes."""

    function: Callable[..., Any]
    examples: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def export_part(name: str, model: JointModel, purifier: SOAP | None = None) -> ExportPart:
    """One of `PARTS`; whole needs a purifier."""

    def classifier(x: Tensor) -> Tensor:
        return model(x)  # type: ignore[no-any-return]

    def loss(x: Tensor) -> Tensor:
        """The auxiliary loss [batch] that purification minimises and chooses a radius by."""
        return model.auxiliary.loss(model, x)

    def step(x: Tensor, x0: Tensor, step_size: Tensor, eps: Tensor) -> Tensor:
        """One step of Algorithm 2, inside eps [batch] of x0 and inside [0, 1]; step_size has no dimension."""
        _, gradient = loss_and_gradient(loss, x)
        ball = Linf(eps)
        # The same as `advance`, with the step size as an input of the graph.
        delta = ball.project(x - step_size * ball.steepest(gradient) - x0)
        return (x0 + delta).clamp(*UNIT)

    def whole(x: Tensor) -> tuple[Tensor, ...]:
        if purifier is None:
            raise TypeError("the part 'whole' needs a purifier")
        purified, eps, loss_before, loss_after = purifier._purified(x)
        return purified, purifier.model(purified), eps, loss_before, loss_after

    # Two tensors: if x and x0 were the same, torch would make one input of them.
    x, x0 = (
        torch.full((EXAMPLE_BATCH, *model.input_shape), 0.5, dtype=next(model.parameters()).dtype) for _ in range(2)
    )
    step_examples = (x, x0, x.new_tensor(0.1), x.new_full((EXAMPLE_BATCH,), 0.3))
    parts = {
        "classifier": ExportPart(classifier, (x,), ("x",), ("logits",)),
        "loss": ExportPart(loss, (x,), ("x",), ("loss",)),
        "step": ExportPart(step, step_examples, ("x", "x0", "step_size", "eps"), ("x_next",)),
        "whole": ExportPart(whole, (x,), ("x",), ("purified", "logits", "eps", "loss_before", "loss_after")),
    }
    return parts[name]


def import_onnx_modules(*modules: str) -> list[Any]:
    """Import modules of the extra `onnx`; a missing one is an `InputError` that names what to install."""
    try:
        return [importlib.import_module(name) for name in modules]
    except ImportError as error:
        raise InputError(
            f"ONNX files need the package {error.name}, which is not installed; pip install '.[onnx]'."
        ) from error


@dataclass(frozen=True, kw_only=True)
class ExportedFiles:
    """The written files by part; `purifier` is that of the parts whole and step, None without them."""

    folder: Path
    paths: dict[str, Path]
    purifier: SOAP | None


def export(
    model: JointModel,
    folder: str | Path,
    *,
    parts: Sequence[str] | None = None,
    eps: float | str = "min-aux",
    step_size: float | None = None,
    steps: int | None = None,
    opset: int = DEFAULT_OPSET,
    force: bool = False,
) -> ExportedFiles:
    """Write `parts` of `model` (None: all that it has) into `folder`; batches of any size, inputs in [0, 1].

    eps, step_size, steps: as for `SOAP`; the whole has them fixed, a step takes its own as inputs.
    """
    import_onnx_modules("onnx", "onnxscript", "onnxruntime")
    folder = Path(folder)
    names = _names(model, parts)
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise InputError(f"opset is {opset}, expected {OPSETS[0]} to {OPSETS[1]}.")
    if isinstance(eps, str) and eps in REFUSED_RADII:
        raise InputError(f"eps={eps!r} {REFUSED_RADII[eps]}, and cannot be exported; use eps='min-aux' or a radius.")
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        raise InputError("the model is on a GPU, expected one on the CPU; move it with model.cpu().")
    paths = {name: folder / f"{name}.onnx" for name in names}
    for path in (*paths.values(), folder / MANIFEST):
        if path.exists() and not force:
            raise InputError(f"{path} already exists; choose another folder, or overwrite with force=True (--force).")
    purifier = SOAP(model, eps, step_size=step_size, steps=steps) if names != ("classifier",) else None
    metadata = _metadata(model, purifier, opset)
    entries = {}
    for name, path in paths.items():
        part = export_part(name, model, purifier)
        with isolated(model):
            _write(part, path, {"part": name, **metadata}, opset)
        entries[name] = {"file": path.name, "sha256": atomic.sha256(path), "bytes": path.stat().st_size,
                           "inputs": part.inputs, "outputs": part.outputs}  # fmt: skip
    manifest = {"schema": MANIFEST_SCHEMA, **metadata, "parts": entries}
    atomic.write_text(folder / MANIFEST, checksums.dumps(manifest, "\n", indent=2))
    return ExportedFiles(folder=folder, paths=paths, purifier=purifier)


def _names(model: JointModel, parts: Sequence[str] | None) -> tuple[str, ...]:
    """The parts to write, in the order of `PARTS`."""
    if parts is None:
        return PARTS if model.purifiable else ("classifier",)
    for name in parts:
        if name not in PARTS:
            raise unknown("part", name, PARTS)
        if name != "classifier":
            _ = model.auxiliary  # raises if the model has none
    if not parts:
        raise InputError(f"no part to export, expected at least one of {', '.join(PARTS)}.")
    return tuple(name for name in PARTS if name in parts)


def _metadata(model: JointModel, purifier: SOAP | None, opset: int) -> dict[str, Any]:
    """Model, settings, input shape and versions, stored in each file and in the manifest."""
    settings: dict[str, Any] = {}
    if purifier is not None:
        settings = {name: getattr(purifier, name) for name in ("eps", "grid", "step_size", "steps")}
        settings["label"] = repr(purifier)
    return {
        "model": model.name,
        "weights_sha256": fingerprint(model),
        "settings": settings,
        "input_shape": ["batch", *model.input_shape],
        "input_range": [0, 1],
        "classes": model.classes,
        "opset": opset,
        "version": __version__,
    }


def _write(part: ExportPart, path: Path, metadata: dict[str, Any], opset: int) -> None:
    """Write one part as one file."""
    batch = torch.export.Dim("batch")
    try:
        with _without_exporter_messages():
            program = torch.onnx.export(
                trace_batch(part.function, part.examples),
                part.examples,
                dynamo=True,
                dynamic_shapes=tuple({0: batch} if x.ndim else None for x in part.examples),
                input_names=part.inputs,
                output_names=part.outputs,
                opset_version=opset,
                verbose=False,
            )
    except RuntimeError as error:
        problem = export_problem(error, part.function, part.examples)
        raise InputError(f"the network cannot be exported as {path.name}: {problem}") from error
    onnx_model = program.model  # type: ignore[union-attr]
    onnx_model.producer_name, onnx_model.producer_version = "soap-defense", __version__
    onnx_model.metadata_props.clear()
    onnx_model.metadata_props.update(
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    )
    for node in onnx_model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces with paths of this machine
    with atomic.replace_file(path) as temporary:
        program.save(temporary, external_data=False)  # type: ignore[union-attr]


@contextmanager
def _without_exporter_messages() -> Iterator[None]:
    """Suppress messages of the exporter that do not concern the user."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        # About its own use of torch's trees, and about one batch axis shared by all inputs.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "# The axis name: batch will not be used", UserWarning)
        log.setLevel(logging.ERROR)  # torchvision's operators are missing and not needed
        try:
            yield
        finally:
            log.setLevel(level)


@dataclass(frozen=True, kw_only=True)
class OnnxModel:
    """An opened folder of `soap export`: its manifest, and an onnxruntime session for each part."""

    manifest: Mapping[str, Any]
    sessions: Mapping[str, Any]

    def run(self, part: str, *inputs: Array) -> Sequence[Array]:
        """The outputs of a part, in the order of the manifest."""
        names = self.manifest["parts"][part]["inputs"]
        outputs: Sequence[Array] = self.sessions[part].run(None, dict(zip(names, inputs, strict=True)))
        return outputs


def open_onnx(folder: Path) -> OnnxModel:
    """Open all parts in the folder's manifest, with as many threads as torch; their checksums must match."""
    (runtime,) = import_onnx_modules("onnxruntime")
    path = folder / MANIFEST
    with atomic.file_errors(path):
        text = path.read_bytes()
    try:
        manifest = checksums.loads(text)
        if manifest["schema"] != MANIFEST_SCHEMA:
            raise ValueError(f"its schema is {manifest['schema']!r}, expected {MANIFEST_SCHEMA!r}")
        entries = {name: (_file_name(part["file"]), part["sha256"]) for name, part in manifest["parts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{path}: not a manifest of `soap export` ({error}); export again.") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    sessions = {}
    for name, (file, expected) in entries.items():
        got = atomic.sha256(folder / file)
        if got != expected:
            raise FileError(f"{folder / file}: sha256 is {got}, but {MANIFEST} has {expected}; export again.")
        sessions[name] = runtime.InferenceSession(folder / file, options, providers=["CPUExecutionProvider"])
    return OnnxModel(manifest=manifest, sessions=sessions)


def _file_name(file: str) -> str:
    """A file name in the manifest's folder; a path could name a device that never ends."""
    if not re.fullmatch(r"\w[\w.-]*", file):
        raise ValueError(f"it names the file {file!r:.60}")
    return file
