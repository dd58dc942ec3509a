"""Many small kernels replayed as one.

Purifying or attacking small images on a GPU is thousands of kernels of a few microseconds each, and most of the time
goes into launching them. A function of tensors that never waits for the host is recorded once as a CUDA graph and
replayed afterwards; elsewhere it is simply called. Small kernels of several rows may also run side by side.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from soap._runtime.splitting import padded_to
from soap.shapes import Tensor

TensorFunction = Callable[..., tuple[Tensor, ...]]
"""Tensors [batch, ...] to tensors [batch, ...], row by row, without waiting for the host."""

MAX_CUDA_GRAPHS_PER_MODULE = 128
"""Recordings kept for one model. One more costs the memory of its inputs and outputs, and to make one again costs the
time of a hundred is_replayable."""

MIN_ROWS_DETERMINISTIC = 128
"""Rows from which on no label depended on how many images were asked for at once, on an H200 (`min_rows_for_determinism`; the table
is in docs/performance.md). Nor did a bit of the logits, but for those of the rotation network."""


@dataclass(frozen=True)
class _Recording:
    """A graph with the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _ModuleGraphs:
    """The recordings of a module, and the memory of what they compute on the way.

    They may share it since they are replayed one at a time and what comes out is copied at once.
    """

    recordings: dict[Hashable, _Recording] = field(default_factory=dict)
    memory: Any = field(default_factory=torch.cuda.graph_pool_handle)


_graphs_by_module: "WeakKeyDictionary[nn.Module, _ModuleGraphs]" = WeakKeyDictionary()
_streams: dict[torch.device, torch.cuda.Stream] = {}
"""Where recordings are made: memory is shared on one stream alone."""
_sample_streams: dict[tuple[torch.device, bool], list[torch.cuda.Stream]] = {}
"""Where the rows of `map_samples` are computed, while recording or not: nobody else's work may come into a recording.
Always the same ones, since each keeps memory of its own."""

_replay_lock = threading.Lock()  # a replay reads and writes the recording's own tensors
_thread_state = threading.local()  # `.recording` while this thread makes one


def replayed(owner: object, key: Hashable, function: TensorFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
    """`function(*inputs)`, as a replay where `owner` is a module that promises to be `recordable` and lies on a GPU.

    The promise is that nothing in the function waits for the host: a recording that fails half-way leaves torch's
    random state unusable, so it is never tried on trust. `key` names the function and its settings. Shapes are rounded
    up to the next power of two by repeating the first row, so that a ragged last batch needs no recording of its own.
    """
    if not isinstance(owner, nn.Module) or not is_replayable(owner, *inputs):
        return function(*inputs)
    rows = len(inputs[0])
    padded = tuple(padded_to(tensor, _next_power_of_two(rows)) for tensor in inputs)
    with _replay_lock:
        shelf = _graphs_by_module.setdefault(owner, _ModuleGraphs())
        known = shelf.recordings
        shapes = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in padded)
        cudnn = torch.backends.cudnn
        algorithms = (cudnn.allow_tf32, cudnn.deterministic, torch.backends.cuda.matmul.allow_tf32)
        full_key = (key, shapes, _weight_addresses(owner), algorithms)
        if full_key not in known:
            while len(known) >= MAX_CUDA_GRAPHS_PER_MODULE:
                known.pop(next(iter(known)))
            _thread_state.recording = True
            try:
                known[full_key] = _record(function, padded, shelf.memory)
            finally:
                _thread_state.recording = False
        recording = known[full_key]
        for static, tensor in zip(recording.inputs, padded, strict=True):
            static.copy_(tensor)
        recording.graph.replay()
        return tuple(output[:rows].clone() for output in recording.outputs)


def release_graphs(owner: nn.Module) -> None:
    """Give back the memory of all recordings made for a module."""
    with _replay_lock:
        _graphs_by_module.pop(owner, None)


def is_replayable(owner: object, *inputs: Tensor) -> bool:
    """Whether `replayed` would replay rather than call."""
    return (
        isinstance(owner, nn.Module)
        and bool(getattr(owner, "recordable", False))
        and all(tensor.is_cuda for tensor in inputs)
        and not getattr(_thread_state, "recording", False)
        and not torch.cuda.is_current_stream_capturing()  # a recording of somebody else's
        and not torch.is_autocast_enabled("cuda")
    )


def min_rows_for_determinism(owner: object, *inputs: Tensor) -> int:
    """Rows to pad a replay to where cuDNN is asked to be deterministic; 1 elsewhere, where speed comes first.

    For few rows cuDNN chooses other convolutions, which round otherwise, and a purifier that steps by signs makes other
    pixels of it: an attacked image, which lies at the brink, is then answered otherwise in a smaller batch.
    """
    return MIN_ROWS_DETERMINISTIC if torch.backends.cudnn.deterministic and is_replayable(owner, *inputs) else 1


def map_samples(function: TensorFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
    """`function` of every row by itself, on a GPU side by side: the answer for one depends on no other, to the bit."""
    rows = [tuple(tensor[k : k + 1] for tensor in inputs) for k in range(len(inputs[0]))]
    device, outputs = inputs[0].device, []
    if device.type != "cuda":
        outputs = [function(*row) for row in rows]
    else:
        here = torch.cuda.current_stream(device)
        lanes = _sample_streams.setdefault((device, getattr(_thread_state, "recording", False)), [])
        lanes += [torch.cuda.Stream(device) for _ in rows[len(lanes) :]]  # type: ignore[no-untyped-call]
        for lane, row in zip(lanes, rows, strict=False):
            lane.wait_stream(here)
            with torch.cuda.stream(lane):
                outputs.append(function(*row))
        for lane, output in zip(lanes, outputs, strict=False):
            here.wait_stream(lane)
            for tensor in output:
                tensor.record_stream(here)  # its memory is the lane's, and read here
    return tuple(torch.cat(column) for column in zip(*outputs, strict=True))


def _record(function: TensorFunction, inputs: tuple[Tensor, ...], memory: Any) -> _Recording:
    """Run once to load kernels, then record; both on a stream of their own, as recording demands."""
    static = tuple(tensor.clone() for tensor in inputs)
    device = inputs[0].device
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream = _streams[device]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
        outputs = function(*static)
    return _Recording(graph, static, outputs)


def _weight_addresses(module: nn.Module) -> int:
    """Where the weights lie: a recording reads those addresses, so it serves until they change."""
    held = (t for part in module.modules() for t in (*part._parameters.values(), *part._buffers.values()))
    return hash(tuple(t.data_ptr() for t in held if t is not None))


def _next_power_of_two(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()
