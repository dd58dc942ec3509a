"""Parts written as ONNX files, with a manifest beside them that says what they are."""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from soap import __version__
from soap._files import atomic
from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel
from soap.errors import InputError, unknown
from soap.evaluation import fingerprint
from soap.export import parts as available
from soap.export.opening import MANIFEST, SCHEMA, needed
from soap.export.parts import PARTS, Part
from soap.export.tracing import traced
from soap.purifiers import SOAP

OPSETS = (18, 23)
"""The oldest and newest version of ONNX's operators that can be written."""

DEFAULT_OPSET = 20

REFUSED = {
    "oracle": "chooses by the true label, so it is no defence",
    "min-aux-batch": "makes an image's answer depend on its batch-mates",
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Where the files lie, by part; `purifier` is what the whole and the step do, None where neither can be."""

    folder: Path
    paths: dict[str, Path]
    purifier: SOAP | None


def export(
    model: JointModel,
    folder: Path,
    *,
    parts: Sequence[str] | None = None,
    eps: float | str = "min-aux",
    step_size: float | None = None,
    steps: int | None = None,
    opset: int = DEFAULT_OPSET,
    force: bool = False,
) -> Exported:
    """Write `parts` of `model` (None: all that it has) into `folder`, batch size free, inputs in [0, 1].

    eps, step_size, steps: as for `SOAP`; they are fixed in the whole, while a step takes its own.
    """
    needed("onnx", "onnxscript", "onnxruntime")
    names = _names(model, parts)
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise InputError(f"opset is {opset}, want {OPSETS[0]} to {OPSETS[1]}.")
    if isinstance(eps, str) and eps in REFUSED:
        raise InputError(f"eps={eps!r} {REFUSED[eps]}, and is not exported; use eps='min-aux' or a radius.")
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        raise InputError("the model is on a GPU, but is exported from the CPU; move it with model.cpu().")
    paths = {name: folder / f"{name}.onnx" for name in names}
    for path in (*paths.values(), folder / MANIFEST):
        if path.exists() and not force:
            raise InputError(f"{path} is there already; choose another folder, or overwrite it with --force.")
    purifier = SOAP(model, eps, step_size=step_size, steps=steps) if names != ("classifier",) else None
    about = _about(model, purifier, opset)
    described = {}
    for name, path in paths.items():
        part = available.whole(purifier) if name == "whole" and purifier else getattr(available, name)(model)
        with isolated(model):
            _write(part, path, {"part": name, **about}, opset)
        described[name] = {"file": path.name, "sha256": atomic.sha256(path), "bytes": path.stat().st_size,
                           "inputs": part.inputs, "outputs": part.outputs}  # fmt: skip
    manifest = {"schema": SCHEMA, **about, "parts": described}
    atomic.write_text(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    return Exported(folder=folder, paths=paths, purifier=purifier)


def _names(model: JointModel, parts: Sequence[str] | None) -> tuple[str, ...]:
    """The parts to write, in the order of `PARTS`."""
    if parts is None:
        return PARTS if model.purifiable else ("classifier",)
    for name in parts:
        if name not in PARTS:
            raise unknown("part", name, PARTS)
        if name != "classifier":
            _ = model.auxiliary  # says so where there is none
    if not parts:
        raise InputError(f"no part to export, want at least one of {', '.join(PARTS)}.")
    return tuple(name for name in PARTS if name in parts)


def _about(model: JointModel, purifier: SOAP | None, opset: int) -> dict[str, Any]:
    """What a reader of a file must know about it."""
    settings: dict[str, Any] = {}
    if purifier is not None:
        settings = {
            "eps": purifier.eps,
            "grid": purifier.grid,
            "step_size": purifier.step_size,
            "steps": purifier.steps,
            "label": repr(purifier),
        }
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


def _write(part: Part, path: Path, about: dict[str, Any], opset: int) -> None:
    """One part as one file."""
    graph = traced(part.function, part.examples)
    batch = torch.export.Dim("batch")
    with _quiet():
        program = torch.onnx.export(
            graph,
            part.examples,
            dynamo=True,
            dynamic_shapes=tuple({0: batch} if x.ndim else None for x in part.examples),
            input_names=part.inputs,
            output_names=part.outputs,
            opset_version=opset,
            verbose=False,
        )
    made = program.model  # type: ignore[union-attr]
    made.producer_name, made.producer_version = "soap-defense", __version__
    made.metadata_props.clear()
    made.metadata_props.update(
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}
    )
    for node in made.graph.all_nodes():
        node.metadata_props.clear()  # stack traces of this machine
    with atomic.replace_file(path) as temporary:
        program.save(temporary, external_data=False)  # type: ignore[union-attr]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says about itself."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        # Its own use of torch's trees, and that one batch is the batch of all inputs.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "# The axis name: batch will not be used", UserWarning)
        log.setLevel(logging.ERROR)  # torchvision's operators are not there, and are not needed
        try:
            yield
        finally:
            log.setLevel(level)
