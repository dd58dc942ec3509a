"""Select the device and precision, and set cuDNN options for the duration of a block."""

import os
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
"""For each thread inside `cudnn_deterministic`, the cuDNN setting when it entered."""


def pick_device(name: str = "auto") -> torch.device:
    """Return the device called `name`; "auto" is the GPU if torch sees one, otherwise the CPU.

    If a launcher started several processes, each one uses its own GPU.
    """
    if distributed.launched_count() > 1 and name != "cpu":
        return _own_gpu(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device: torch.device | None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise unknown("device", name, ("auto", "cpu", "cuda", "cuda:0", "mps"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"got device {name!r}, but torch sees no GPU; use --device cpu.")
    return device


def _own_gpu(name: str) -> torch.device:
    """Return the GPU of this process among several; the CPU if there is no GPU and the name is "auto"."""
    if name not in ("auto", "cuda"):
        raise InputError(
            f"device {name!r} is one for all {distributed.launched_count()} processes; use auto, cuda or cpu."
        )
    rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if name == "auto" and gpus == 0:
        return torch.device("cpu")
    if rank >= gpus:
        raise InputError(
            f"process {rank} of this machine has no GPU of its own (torch sees {gpus}); "
            "start fewer processes, or use --device cpu."
        )
    return torch.device("cuda", rank)


def describe_device(device: torch.device) -> str:
    """Return the device's product name, for the provenance of results."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.get_num_threads()} threads)"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Return a context that computes matrix products in `precision`; weights and sums stay in fp32.

    bf16 is accepted on GPUs only. CPUs without bf16 instructions are slower with it, and some virtual CPUs report the
    instructions but crash the process.
    """
    validate.choice("precision", precision, PRECISIONS)
    if precision == "fp32":
        return nullcontext()
    if device.type != "cuda":
        raise InputError(f"precision 'bf16' is for GPUs, got device {device}; use fp32.")
    context: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16)
    return context


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN time its algorithms and use the fastest; two runs then agree to rounding, not bitwise."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def cudnn_deterministic() -> Iterator[None]:
    """Let cuDNN use only algorithms with a fixed order of summation.

    The setting belongs to the process: it is restored when the last of several threads leaves the block.
    """
    cudnn = torch.backends.cudnn
    with _lock:
        _before.append(cudnn.deterministic)
        cudnn.deterministic = True
    try:
        yield
    finally:
        with _lock:
            value = _before.pop()  # the last thread to leave pops the value of the first one that entered
            if not _before:
                cudnn.deterministic = value
