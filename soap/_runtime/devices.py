"""Devices, precision, and cuDNN settings for the duration of a block."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from soap import validate
from soap._runtime import distributed
from soap.errors import InputError, unknown

PRECISIONS = ("fp32", "bf16")

_lock = threading.Lock()

_before: list[bool] = []
"""What cuDNN was set to when each of those came who are inside `cudnn_deterministic`."""


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" is the GPU where there is one, else the CPU.

    Of several processes that a launcher started each has a GPU of its own.
    """
    if distributed.launched_count() > 1 and name != "cpu":
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
        raise InputError(
            f"device {name!r} is one for all {distributed.launched_count()} processes; want auto, cuda or cpu."
        )
    place, there = distributed.local_rank(), torch.cuda.device_count()
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
def cudnn_benchmark() -> Iterator[None]:
    """cuDNN tries its algorithms inside and keeps the fastest: two runs then agree to rounding, not to the bit."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def cudnn_deterministic() -> Iterator[None]:
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
