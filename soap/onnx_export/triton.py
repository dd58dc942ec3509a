"""Triton model repository of exported parts: for each part a folder with config.pbtxt and numbered versions.

https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html
"""

import json
import re
from pathlib import Path
from typing import Any

from soap._files import atomic
from soap.errors import InputError
from soap.onnx_export.onnx_files import ExportedFiles, import_onnx_modules

MAX_BATCH_SIZE = 32
QUEUE_DELAY_US = 4000
"""Microseconds that the first request of a batch waits for others, as in `soap serve`."""

MAX_QUEUE_SIZE = 64
"""Requests that wait; Triton refuses further ones. Its own default has no limit."""

TRITON_TYPES = {"FLOAT": "TYPE_FP32", "DOUBLE": "TYPE_FP64"}
"""Triton's name by the name in ONNX, for the types that an export can contain."""


def write_triton_repository(files: ExportedFiles, folder: str | Path) -> list[Path]:
    """Copy each part to `folder`/MODEL-PART/VERSION/model.onnx, beside its config.pbtxt; return the folders MODEL-PART.

    The version is the next free number. Earlier versions are kept; Triton serves the newest.
    """
    (onnx,) = import_onnx_modules("onnx")
    written = []
    for part, path in files.paths.items():
        model = onnx.load(path)
        name = f"{next(one.value for one in model.metadata_props if one.key == 'model')}-{part}"
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise InputError(f"the model is named {name!r}, expected letters, digits, - and _ for Triton; rename it.")
        target = Path(folder) / name
        versions = [int(one.name) for one in target.glob("*") if one.name.isdecimal()]
        atomic.copy(path, target / str(max(versions, default=0) + 1) / "model.onnx")
        atomic.write_text(target / "config.pbtxt", config_text(name, model.graph))
        written.append(target)
    return written


def config_text(name: str, graph: Any) -> str:
    """The config.pbtxt of an ONNX graph.

    Triton batches a model only if the first dimension of every input is the batch. The part step has a scalar input, so
    Triton does not batch it, and its dimensions include the batch.
    """
    batched = all(one.type.tensor_type.shape.dim for one in graph.input)
    lines = [f"name: {json.dumps(name)}", 'backend: "onnxruntime"', f"max_batch_size: {MAX_BATCH_SIZE * batched}"]
    lines += [f"input {{ {_tensor_text(one, batched=batched)} }}" for one in graph.input]
    lines += [f"output {{ {_tensor_text(one, batched=batched)} }}" for one in graph.output]
    if batched:
        queue = f"default_queue_policy {{ max_queue_size: {MAX_QUEUE_SIZE} }}"
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {QUEUE_DELAY_US} {queue} }}")
    return "\n".join(lines) + "\n"


def _tensor_text(tensor: Any, *, batched: bool) -> str:
    """Name, type and dimensions of an input or output; -1 is the batch, which batched models leave out.

    Triton has no tensor without dimensions: clients see [batch, 1] for one number per image, and [1] for a scalar.
    """
    (onnx,) = import_onnx_modules("onnx")
    content = tensor.type.tensor_type
    sizes = [dim.dim_value or -1 for dim in content.shape.dim][batched:]
    reshape = " reshape { shape: [ ] }" if batched and not sizes else ""
    kind = TRITON_TYPES[onnx.TensorProto.DataType.Name(content.elem_type)]
    return f"name: {json.dumps(tensor.name)} data_type: {kind} dims: {sizes or [1]}{reshape}"
