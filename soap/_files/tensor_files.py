"""Tensors on disk: safetensors files, which hold numbers and text, never code."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from soap._files import atomic, checksums
from soap.errors import FileError, InputError
from soap.shapes import Tensor

MAX_HEADER_BYTES = 2**24
"""Bytes of a safetensors header at most; that of the largest network here has some 20 thousand."""

MAX_DIMENSIONS = 64
"""Of a tensor; torch counts with no more."""

_CORRUPT_HEADER_ERRORS = (
    ValueError, struct.error, AttributeError, KeyError, TypeError, RuntimeError, MemoryError, OverflowError
)  # fmt: skip
"""What a damaged header meets on its way, beside safetensors' own error; too deep a nesting is a RuntimeError."""


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], previous: Path | None = None
) -> None:
    """Write a safetensors file atomically, with a checksum of all its bytes; `previous` keeps the one before it."""
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # Serialised in memory first: a full disk then fails in our own write, with a clear error.
    content = checksums.with_checksum(
        safetensors.torch.save(plain, {**metadata, checksums.CHECKSUM_FIELD: checksums.ZERO_CHECKSUM})
    )
    with atomic.replace_file(path, previous) as temporary:
        temporary.write_bytes(content)


def check_storable(tensors: Mapping[str, object]) -> None:
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
    with atomic.file_errors(path):
        content = path.read_bytes()
    try:
        (length,) = struct.unpack("<Q", content[:8])
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"its header is said to have {length:,} bytes, want at most {MAX_HEADER_BYTES:,}")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        checksums.verify(content, metadata)
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, *_CORRUPT_HEADER_ERRORS) as error:
        raise FileError(f"{path}: not a whole safetensors file ({error}); fetch or train it again.") from error
    for name, tensor in tensors.items():
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() == 1):
            raise FileError(f"{path}: tensor {name!r} is {tensor.dtype}; want real numbers of 16, 32 or 64 bits.")
        if tensor.dim() > MAX_DIMENSIONS:
            raise FileError(f"{path}: tensor {name!r} has {tensor.dim()} dimensions, want at most {MAX_DIMENSIONS}.")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise FileError(f"{path}: tensor {name!r} has NaN or infinite values; fetch or train it again.")
    return tensors, {name: value for name, value in metadata.items() if name != checksums.CHECKSUM_FIELD}
