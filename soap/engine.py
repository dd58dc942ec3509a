"""Devices, precision, seeds and tensors on disk.

Weights and checkpoints are safetensors files: plain numbers and text, never code.
"""

import json
import signal
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

import safetensors
import safetensors.torch
import torch

from soap import files, intact, ranks, validate
from soap.errors import FileError, InputError, unknown
from soap.shapes import Tensor

PRECISIONS = ("fp32", "bf16")

HEADER = 2**24
"""Bytes of a safetensors header at most; that of the largest network here has some 20 thousand."""
DIMENSIONS = 64
"""Of a tensor; torch counts with no more."""

_lock = threading.Lock()
_before: list[bool] = []
"""What cuDNN was set to when each of those came who are inside `repeatable`."""

_DAMAGE = (
    ValueError, struct.error, AttributeError, KeyError, TypeError, RuntimeError, MemoryError, OverflowError
)  # fmt: skip
"""What a damaged header meets on its way, beside safetensors' own error; too deep a nesting is a RuntimeError."""


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" is the GPU where there is one, else the CPU.

    Of several processes that a launcher started each has a GPU of its own.
    """
    if ranks.started() > 1 and name != "cpu":
        return _own_gpu(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise unknown("device", name, ("auto", "cpu", "cuda", "cuda:0", "mps")) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!r} was asked for, but torch sees no GPU; use --device cpu.")
    if device.type not in ("cpu", "cuda", "mps"):
        raise unknown("device", name, ("auto", "cpu", "cuda", "cuda:0", "mps"))
    return device


def _own_gpu(name: str) -> torch.device:
    """The GPU of this one of several processes; the CPU where there is none and "auto" leaves the choice."""
    if name not in ("auto", "cuda"):
        raise InputError(f"device {name!r} is one for all {ranks.started()} processes; want auto, cuda or cpu.")
    place, there = ranks.place_on_machine(), torch.cuda.device_count()
    if name == "auto" and there == 0:
        return torch.device("cpu")
    if place >= there:
        raise InputError(
            f"process {place} of this machine has no GPU of its own ({there} there); start fewer, or use --device cpu."
        )
    return torch.device("cuda", place)


def describe_device(device: torch.device) -> str:
    """The device's own name, for provenance."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.get_num_threads()} threads)"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Matrix products in bf16 inside, if so chosen; weights and sums stay in fp32.

    bf16 is for GPUs: processors without the instructions are slower with it, and some virtual ones that
    announce them end the process.
    """
    validate.choice("precision", precision, PRECISIONS)
    if precision == "fp32":
        return nullcontext()
    if device.type != "cuda":
        raise InputError(f"precision 'bf16' is for GPUs, got device {device}; use fp32 there.")
    context: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16)
    return context


@contextmanager
def timed_convolutions() -> Iterator[None]:
    """cuDNN tries its algorithms inside and keeps the fastest: two runs then agree to rounding, not to the bit."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def repeatable() -> Iterator[None]:
    """Inside, cuDNN takes none of the algorithms that add up in whatever order their threads arrive.

    The setting is the process's: it is put back when the last of several threads inside has left.
    """
    cudnn = torch.backends.cudnn
    with _lock:
        _before.append(cudnn.deterministic)
        cudnn.deterministic = True
    try:
        yield
    finally:
        with _lock:
            last = _before.pop()  # the first that came in lies lowest, and is what the last one out takes
            if not _before:
                cudnn.deterministic = last


def seed_for(seed: int, *counters: int) -> int:
    """A seed for one step of one run: random draws then depend on the counters, not on what came before."""
    mixed = seed & 0xFFFFFFFFFFFFFFFF
    for counter in counters:  # splitmix64, so that neighbouring counters give unrelated streams
        mixed = (mixed + 0x9E3779B97F4A7C15 * (counter + 1)) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1  # torch takes 63 bits


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], previous: Path | None = None
) -> None:
    """Write a safetensors file atomically, with a checksum of all its bytes; `previous` keeps the one before it."""
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # Serialised in memory first: a full disk then fails in our own write, with a clear error.
    content = intact.filled(safetensors.torch.save(plain, {**metadata, intact.FIELD: intact.BLANK}))
    with files.replacing(path, previous) as temporary:
        temporary.write_bytes(content)


def check_keepable(tensors: Mapping[str, object]) -> None:
    """Whether `load_tensors` would read back a file of these: an error before the work, not after it."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            got = f"is a {type(value).__name__}, want a tensor"
        elif value.is_complex():
            got = f"is {value.dtype}, want real numbers"
        elif value.is_floating_point() and not torch.isfinite(value).all():
            got = "has NaN or infinite values"
        else:
            continue
        raise InputError(
            f"{name!r} of the model {got}: its weights could not be kept. Leave what does not learn out of the state, "
            "e.g. by register_buffer(..., persistent=False)."
        )


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file whole; truncated, changed or non-finite content is an error that names it.

    Files of before, without a checksum, are held to the format alone.
    """
    with files.explained(path):
        content = path.read_bytes()
    try:
        (length,) = struct.unpack("<Q", content[:8])
        if length > HEADER:
            raise ValueError(f"its header is said to have {length:,} bytes, want at most {HEADER:,}")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        intact.check(content, metadata)
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, *_DAMAGE) as error:
        raise FileError(f"{path}: not a whole safetensors file ({error}); fetch or train it again.") from error
    for name, tensor in tensors.items():
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() == 1):
            raise FileError(f"{path}: tensor {name!r} is {tensor.dtype}; want real numbers of 16, 32 or 64 bits.")
        if tensor.dim() > DIMENSIONS:
            raise FileError(f"{path}: tensor {name!r} has {tensor.dim()} dimensions, want at most {DIMENSIONS}.")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise FileError(f"{path}: tensor {name!r} has NaN or infinite values; fetch or train it again.")
    return tensors, {name: value for name, value in metadata.items() if name != intact.FIELD}


class StopRequest:
    """Whether Ctrl-C (or a termination signal) has asked the work to stop at its next safe point."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """True once a stop was asked for."""
        return self.requested


@contextmanager
def stoppable() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop; a second one interrupts at once.

    Unless there are several processes, for their launcher passes on what they got already; it ends those that take
    too long.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.requested and not ranks.here().many:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
