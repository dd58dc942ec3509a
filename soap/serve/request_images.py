"""Decode a request body: a PNG or JPEG picture, or JSON, into images as tensors."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from starlette.exceptions import HTTPException
from typing_extensions import TypeAliasType

from soap import validate
from soap.data.pictures import read_picture
from soap.errors import InputError
from soap.serve import Limits
from soap.shapes import Float, Tensor

PICTURE_TYPES = ("image/png", "image/jpeg")
JSON_TYPE = "application/json"

# fail_fast: without it, a body of wrong values gives an error object for each of them.
Flat = Annotated[list[FiniteFloat], Field(fail_fast=True)]
Nested = Annotated[list["Numbers"], Field(fail_fast=True)]
Numbers = TypeAliasType("Numbers", Annotated[Flat | Nested, Field(union_mode="left_to_right")])


class StrictModel(BaseModel):
    """A part of a request: unknown fields are refused, and values are not converted."""

    model_config = ConfigDict(strict=True, extra="forbid")


class JsonImage(StrictModel):
    """An image as JSON numbers."""

    image: Numbers = Field(description="Values in [0, 1]: [channels][height][width], or [height][width] for grey.")


Body = TypeVar("Body", bound=BaseModel)


def parse_json(kind: type[Body], text: bytes, limits: Limits) -> Body:
    """The JSON body as a pydantic model; its length is checked before it is parsed."""
    if len(text) > limits.json:
        expected = f"expected at most {limits.json:,}; send a picture, binary tensors or fewer images."
        raise HTTPException(413, f"the JSON is {len(text):,} bytes, {expected}")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]  # its input is the client's
        status = 400 if first["type"] == "json_invalid" else 422
        place = ".".join(map(str, first["loc"][:4])) or "the body"
        raise HTTPException(status, f"{place}: {first['msg']}; /docs describes the request.") from error


def image_schema(kind: type[BaseModel], *formats: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The request body for the OpenAPI schema: JSON like `kind`, or `formats`; and the components it refers to."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    components = schema.pop("$defs")
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {**dict.fromkeys(formats, binary), JSON_TYPE: {"schema": schema}}
    return {"requestBody": {"required": True, "description": "Images in [0, 1].", "content": content}}, components


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
    if kind != JSON_TYPE:
        return read_picture(body, shape, resize=True, invert=invert, max_pixels=limits.pixels, formats=("PNG", "JPEG"))
    try:
        x = torch.tensor(parse_json(JsonImage, body, limits).image)
    except (ValueError, TypeError, RuntimeError) as error:  # TypeError: lists of different depth
        raise InputError("the image is not rectangular; send rows of equal length.") from error
    x = x[None] if x.ndim == 2 else x
    if x.shape != tuple(shape):
        raise InputError(f"the image has shape {list(x.shape)}, but this model takes {list(shape)}.")
    validate.inputs(x[None])
    return 1 - x if invert else x
