"""Images as JSON numbers: {"image": [[...]]} with values in [0, 1], in the model's own shape."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from soap import validate
from soap.errors import InputError
from soap.serve.problems import RequestError
from soap.shapes import Float, Tensor

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "image": {
            "type": "array",
            "description": "Values in [0, 1]: [channels][height][width], or [height][width] for grey.",
            "items": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "array"}]}},
        }
    },
    "required": ["image"],
    "additionalProperties": False,
}
"""The JSON body, for the OpenAPI schema."""


def decode(body: bytes, shape: Sequence[int], *, most: int, invert: bool = False) -> Float[Tensor, "c h w"]:
    """The image of a JSON body of at most `most` bytes."""
    if len(body) > most:
        raise RequestError(413, f"the JSON is {len(body):,} bytes, want at most {most:,}; send a PNG instead.")
    try:
        content = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, 'the body is not valid JSON; want {"image": [[...]]} with values in [0, 1].') from error
    if not isinstance(content, dict) or set(content) != {"image"}:
        raise RequestError(422, 'want one JSON object with one key: {"image": [[...]]} with values in [0, 1].')
    values = _numbers(content["image"])
    if values.shape == tuple(shape)[1:] and shape[0] == 1:
        values = values[None]
    if values.shape != tuple(shape):
        raise RequestError(422, f"the image has shape {list(values.shape)}, but this model takes {list(shape)}.")
    x = torch.from_numpy(values)
    validate.inputs(x[None])
    return 1 - x if invert else x


def _numbers(nested: object) -> np.ndarray[Any, np.dtype[np.float32]]:
    try:
        values = np.array(nested)  # no dtype: text and null must not turn into numbers
    except (ValueError, OverflowError) as error:  # ragged, or deeper than numpy goes
        raise InputError("the image is no rectangle of numbers; want rows of equal length.") from error
    if values.dtype.kind not in "fiu":
        raise InputError("the image holds something else than numbers; want values in [0, 1].")
    with np.errstate(over="ignore"):  # too large for single precision becomes infinite, and is refused as such
        return np.ascontiguousarray(values, dtype=np.float32)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
