"""Record functions of tensors as CUDA graphs and replay them; forward passes and input gradients that are replayed.

Purifying or attacking small images on a GPU takes thousands of kernels of a few microseconds each, and most of the time
goes into launching them, and into selecting convolution algorithms for every new batch size. A function of tensors that
never waits for the host is recorded once as a CUDA graph, for batches padded to a few sizes, and replayed in later
calls. On other devices the function is called directly.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from soap._runtime.splitting import in_chunks, padded_to
from soap.shapes import Float, Tensor

TensorFunction = Callable[..., tuple[Tensor, ...]]
"""Tensors [batch, ...] to tensors [batch, ...], each sample independent of the others, without waiting for the host."""

MAX_CUDA_GRAPHS_PER_MODULE = 128
"""Each graph holds the memory of its inputs and outputs. Recording one again takes the time of about 100 replays."""

MAX_ROWS_PER_PASS = 512
"""Larger passes are hardly faster. A power of two, because replays are padded to powers of two."""

MIN_ROWS_DETERMINISTIC = 128
"""Batch size from which no label depended on the batch size, measured on an H200 (table in docs/performance.md). The
logits did not change by a bit either, except those of the rotation network."""


@dataclass(frozen=True)
class _Recording:
    """A CUDA graph with its fixed input and output tensors."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _ModuleGraphs:
    """The recorded graphs of one module and the memory pool of their intermediate results.

    The graphs can share the pool, because they are replayed one at a time and their outputs are copied at once.
    """

    recordings: dict[Hashable, _Recording] = field(default_factory=dict)
    memory: Any = field(default_factory=torch.cuda.graph_pool_handle)


_graphs_by_module: "WeakKeyDictionary[nn.Module, _ModuleGraphs]" = WeakKeyDictionary()
_recording_streams: dict[torch.device, torch.cuda.Stream] = {}
"""One stream per device for recording: graphs can share a memory pool only on the same stream."""
_sample_streams: dict[tuple[torch.device, bool], list[torch.cuda.Stream]] = {}
"""The streams of `map_samples`, reused because each keeps its own memory. The flag separates those used while
recording: work of other threads must not enter a recording."""

_replay_lock = threading.Lock()  # a replay reads and writes the recording's own tensors
_thread_state = threading.local()  # `.recording` is true while this thread records


def replayed(owner: object, key: Hashable, function: TensorFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return `function(*inputs)`, by replaying a CUDA graph if `owner` is a `recordable` module on a GPU.

    `recordable` promises that nothing in the function waits for the host. A recording that fails half-way makes torch's
    random state unusable, so it is never tried without the promise. `key` identifies the function and its settings.
    Batches are padded to the next power of two with their first sample, so a smaller last batch needs no graph of its
    own.
    """
    if not isinstance(owner, nn.Module) or not is_replayable(owner, *inputs):
        return function(*inputs)
    rows = len(inputs[0])
    padded = tuple(padded_to(tensor, _next_power_of_two(rows)) for tensor in inputs)
    with _replay_lock:
        graphs = _graphs_by_module.setdefault(owner, _ModuleGraphs())
        recordings = graphs.recordings
        shapes = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in padded)
        cudnn = torch.backends.cudnn
        algorithms = (cudnn.allow_tf32, cudnn.deterministic, torch.backends.cuda.matmul.allow_tf32)
        full_key = (key, shapes, _weight_addresses(owner), algorithms)
        if full_key not in recordings:
            while len(recordings) >= MAX_CUDA_GRAPHS_PER_MODULE:
                recordings.pop(next(iter(recordings)))
            _thread_state.recording = True
            try:
                recordings[full_key] = _record(function, padded, graphs.memory)
            finally:
                _thread_state.recording = False
        recording = recordings[full_key]
        for static, tensor in zip(recording.inputs, padded, strict=True):
            static.copy_(tensor)
        recording.graph.replay()
        return tuple(output[:rows].clone() for output in recording.outputs)


def release_graphs(owner: nn.Module) -> None:
    """Free the memory of all graphs recorded for a module."""
    with _replay_lock:
        _graphs_by_module.pop(owner, None)


def is_replayable(owner: object, *inputs: Tensor) -> bool:
    """Return whether `replayed` replays a graph for these inputs instead of calling the function."""
    return (
        isinstance(owner, nn.Module)
        and bool(getattr(owner, "recordable", False))
        and all(tensor.is_cuda for tensor in inputs)
        and not getattr(_thread_state, "recording", False)
        and not torch.cuda.is_current_stream_capturing()  # the caller records a graph of its own
        and not torch.is_autocast_enabled("cuda")
    )


def min_rows_for_determinism(owner: object, *inputs: Tensor) -> int:
    """Return the batch size to pad a replay to: MIN_ROWS_DETERMINISTIC if cuDNN must be deterministic, otherwise 1.

    For small batches cuDNN selects other convolution algorithms, which round differently. A purifier that steps by
    signs then changes other pixels. An attacked image is close to the decision boundary, so its label may change.
    """
    return MIN_ROWS_DETERMINISTIC if torch.backends.cudnn.deterministic and is_replayable(owner, *inputs) else 1


def map_samples(function: TensorFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return `function` applied to each sample separately: bitwise independent of the batch; concurrent on a GPU."""
    samples = [tuple(tensor[k : k + 1] for tensor in inputs) for k in range(len(inputs[0]))]
    device, outputs = inputs[0].device, []
    if device.type != "cuda":
        outputs = [function(*sample) for sample in samples]
    else:
        current = torch.cuda.current_stream(device)
        streams = _sample_streams.setdefault((device, getattr(_thread_state, "recording", False)), [])
        streams += [torch.cuda.Stream(device) for _ in samples[len(streams) :]]  # type: ignore[no-untyped-call]
        for stream, sample in zip(streams, samples, strict=False):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                outputs.append(function(*sample))
        for stream, output in zip(streams, outputs, strict=False):
            current.wait_stream(stream)
            for tensor in output:
                tensor.record_stream(current)  # allocated on `stream`, read on `current`
    return tuple(torch.cat(column) for column in zip(*outputs, strict=True))


def is_replayed(model: object, x: Float[Tensor, "batch *shape"]) -> bool:
    """Return whether passes of `model` are replayed: on a GPU, `recordable`, and no submodule in training mode."""
    return isinstance(model, nn.Module) and is_replayable(model, x) and not any(m.training for m in model.modules())


def forward_logits(model: nn.Module, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
    """Return `model(x)` without an autograd graph."""
    return _in_parts(model, "forward", partial(_forward, model), x)


def input_gradient(
    model: nn.Module, x: Float[Tensor, "batch *shape"], upstream: Float[Tensor, "batch classes"]
) -> Float[Tensor, "batch *shape"]:
    """Return the gradient with respect to `x` of a loss whose gradient with respect to `model(x)` is `upstream`."""
    return _in_parts(model, "input gradient", partial(_backward, model), x, upstream)


def _in_parts(model: nn.Module, key: str, function: TensorFunction, *inputs: Tensor) -> Tensor:
    replay = partial(replayed, model, key, function)
    with torch.inference_mode(False):  # autograd cannot record tensors made in inference mode
        inputs = tuple(tensor.clone() if tensor.is_inference() else tensor.detach() for tensor in inputs)
        least = min_rows_for_determinism(model, *inputs)
        (out,) = in_chunks(
            replay, *inputs, max_rows=MAX_ROWS_PER_PASS, min_rows=least, release=partial(release_graphs, model)
        )
    return out


def _forward(model: nn.Module, x: Tensor) -> tuple[Tensor]:
    with torch.no_grad():
        return (model(x),)


def _backward(model: nn.Module, x: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        return torch.autograd.grad(model(point), point, upstream)


def _record(function: TensorFunction, inputs: tuple[Tensor, ...], memory: Any) -> _Recording:
    """Call the function once to load its kernels, then record it; CUDA requires a separate stream for both."""
    static = tuple(tensor.clone() for tensor in inputs)
    device = inputs[0].device
    if device not in _recording_streams:
        _recording_streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream = _recording_streams[device]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
        outputs = function(*static)
    return _Recording(graph, static, outputs)


def _weight_addresses(module: nn.Module) -> int:
    """Hash the memory addresses of the weights: a graph reads those addresses and is valid until they change."""
    held = (t for part in module.modules() for t in (*part._parameters.values(), *part._buffers.values()))
    return hash(tuple(t.data_ptr() for t in held if t is not None))


def _next_power_of_two(rows: int) -> int:
    return 1 << (rows - 1).bit_length()
