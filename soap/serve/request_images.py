"""Decode a request body into an image: a PNG or JPEG picture, or JSON numbers {"image": [[...]]} in [0, 1]."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from starlette.exceptions import HTTPException

from soap import validate
from soap.data.pictures import read_picture
from soap.serve import Limits
from soap.shapes import Float, Tensor

PICTURE_TYPES = ("image/png", "image/jpeg")
JSON_TYPE = "application/json"

# fail_fast: without it, a body of wrong values gives an error object for each of them.
Row = Annotated[list[FiniteFloat], Field(fail_fast=True)]
Channel = Annotated[list[Row], Field(fail_fast=True)]


class JsonImage(BaseModel):
    """An image as JSON numbers."""

    model_config = ConfigDict(strict=True, extra="forbid")

    image: Channel | Annotated[list[Channel], Field(fail_fast=True)] = Field(
        description="Values in [0, 1]: [channels][height][width], or [height][width] for grey."
    )


OPENAPI_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A PNG or JPEG picture, or the image as JSON numbers.",
        "content": {
            **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in PICTURE_TYPES},
            JSON_TYPE: {"schema": JsonImage.model_json_schema()},
        },
    }
}
"""Request body of the routes that take an image, for the OpenAPI schema."""


def decode_image(
    body: bytes, content_type: str, shape: Sequence[int], limits: Limits, *, invert: bool
) -> Float[Tensor, "c h w"]:
    """The image in a request body as a tensor of `shape` in [0, 1].

    PNG and JPEG are recognised by their first bytes; the content type only separates pictures from JSON.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (*PICTURE_TYPES, JSON_TYPE):
        raise HTTPException(415, f"expected Content-Type {', '.join(PICTURE_TYPES)} or {JSON_TYPE}.")
    if not body:
        raise HTTPException(422, 'the body is empty; send a PNG or JPEG picture, or JSON like {"image": [[...]]}.')
    if kind == JSON_TYPE:
        return decode_json_image(body, shape, max_bytes=limits.json, invert=invert)
    return read_picture(body, shape, resize=True, invert=invert, max_pixels=limits.pixels, formats=("PNG", "JPEG"))


def decode_json_image(
    body: bytes, shape: Sequence[int], *, max_bytes: int, invert: bool = False
) -> Float[Tensor, "c h w"]:
    """The image in a JSON body of at most `max_bytes` bytes."""
    if len(body) > max_bytes:
        raise HTTPException(
            413, f"the JSON is {len(body):,} bytes, expected at most {max_bytes:,}; send a PNG instead."
        )
    try:
        x = torch.tensor(JsonImage.model_validate_json(body).image)
    except ValidationError as error:
        status = 400 if error.errors()[0]["type"] == "json_invalid" else 422
        raise HTTPException(status, 'expected JSON like {"image": [[...]]} with numbers in [0, 1].') from error
    except ValueError as error:
        raise HTTPException(422, "the image is not rectangular; send rows of equal length.") from error
    if x.ndim == 2:
        x = x[None]
    if x.shape != tuple(shape):
        raise HTTPException(422, f"the image has shape {list(x.shape)}, but this model takes {list(shape)}.")
    validate.inputs(x[None])
    return 1 - x if invert else x
