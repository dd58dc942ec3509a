"""Read and write safetensors files, which hold numbers and text, never code."""

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
"""Largest accepted safetensors header. The header of the largest network here has about 20,000 bytes."""

MAX_DIMENSIONS = 64
"""Largest number of tensor dimensions that torch supports."""

_CORRUPT_HEADER_ERRORS = (
    ValueError, struct.error, AttributeError, KeyError, TypeError, RuntimeError, MemoryError, OverflowError
)  # fmt: skip
"""Exceptions that reading a corrupt header can raise, besides SafetensorError; deep nesting raises a RuntimeError."""


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], previous: Path | None = None
) -> None:
    """Write a safetensors file atomically, with a checksum of all its bytes; `previous` keeps the replaced file."""
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # Serialised in memory first, so that a full disk fails in `write_bytes`, with a clear error.
    content = checksums.with_checksum(
        safetensors.torch.save(plain, {**metadata, checksums.CHECKSUM_FIELD: checksums.ZERO_CHECKSUM})
    )
    with atomic.replace_file(path, previous) as temporary:
        temporary.write_bytes(content)


SINGLE = (torch.float32, torch.float16, torch.bfloat16)
"""Stored dtypes that load into single precision."""


def check_storable(tensors: Mapping[str, object]) -> None:
    """Raise an InputError if `load_tensors` would refuse a file with these tensors; call it before long work."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            problem = f"is a {type(value).__name__}, expected a tensor"
        elif value.is_complex():
            problem = f"is {value.dtype}, expected real numbers"
        elif value.is_floating_point() and not torch.isfinite(value).all():
            problem = "has NaN or infinite values"
        else:
            continue
        raise InputError(
            f"{name!r} of the model {problem}, so its weights cannot be stored. Exclude it from the state_dict, "
            "e.g. by register_buffer(..., persistent=False)."
        )


def check_shapes(path: Path, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], advice: str) -> None:
    """Raise a FileError unless both have the same names, shapes and dtypes; 16-bit floats count as single."""

    def described(parts: Mapping[str, Tensor], key: str) -> str:
        if key not in parts:
            return "nothing"
        kind = "" if parts[key].dtype in SINGLE else f" of {parts[key].dtype}"
        return f"{list(parts[key].shape)}{kind}"

    for key in sorted({*wanted, *tensors}):
        got, want = described(tensors, key), described(wanted, key)
        if got != want:
            raise FileError(f"{path}: tensor {key!r} is {got}, expected {want}: {advice}.")


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file; raise if it is truncated, changed or not finite.

    Files of older versions have no checksum; of these only the format is checked.
    """
    with atomic.file_errors(path):
        content = path.read_bytes()
    try:
        (length,) = struct.unpack("<Q", content[:8])
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"its header states a length of {length:,} bytes, expected at most {MAX_HEADER_BYTES:,}")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        checksums.verify(content, metadata)
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, *_CORRUPT_HEADER_ERRORS) as error:
        raise FileError(f"{path}: not a complete safetensors file ({error}); download or train it again.") from error
    for name, tensor in tensors.items():
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() == 1):
            raise FileError(f"{path}: tensor {name!r} is {tensor.dtype}, expected real numbers of 16, 32 or 64 bits.")
        if tensor.dim() > MAX_DIMENSIONS:
            raise FileError(
                f"{path}: tensor {name!r} has {tensor.dim()} dimensions, expected at most {MAX_DIMENSIONS}."
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise FileError(f"{path}: tensor {name!r} has NaN or infinite values; download or train it again.")
    return tensors, {name: value for name, value in metadata.items() if name != checksums.CHECKSUM_FIELD}
