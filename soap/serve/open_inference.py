"""Open Inference Protocol v2, which clients of KServe, Triton and MLServer speak: metadata, health and inference.

An inference request has one FP32 tensor of images, as JSON numbers or as bytes behind the JSON (the binary tensor data
extension). It is purified, unless its parameters say otherwise, and classified.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
import torch
from fastapi import FastAPI, Path, Request, Response
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from soap import __version__, validate
from soap.auxiliary import JointModel
from soap.errors import InputError, unknown
from soap.serve import Limits
from soap.serve.admission import INFER_ROUTE
from soap.serve.errors import ProtocolErrorResponse, error_schemas
from soap.serve.inference import DecodedRequest, InferenceService
from soap.serve.request_images import Numbers, StrictModel, image_schema, parse_json
from soap.serve.trajectories import Operation, Predict, Purify, Trajectory
from soap.shapes import Float, Tensor

JSON_LENGTH_HEADER = "inference-header-content-length"
"""Header with the number of bytes of the JSON, if the bytes of tensors follow it."""

NUMPY_TYPES = {"FP32": "<f4", "INT64": "<i8"}

OutputName = Literal["logits", "label", "eps", "loss_before", "loss_after", "score"]
OUTPUTS: dict[OutputName, tuple[str, Callable[[Trajectory], Any]]] = {
    "logits": ("FP32", lambda found: found.logits[-1].numpy()),
    "label": ("INT64", lambda found: found.logits[-1].argmax().item()),
    "eps": ("FP32", lambda found: found.eps or 0.0),  # 0 without purification
    "loss_before": ("FP32", lambda found: found.losses[0].item()),  # type: ignore[index]
    "loss_after": ("FP32", lambda found: found.losses[-1].item()),  # type: ignore[index]
    "score": ("FP32", lambda found: found.losses[0].item()),  # type: ignore[index]
}
"""Datatype and value of each output. A model without an auxiliary task has the first two only, and no losses."""


class TensorParameters(StrictModel):
    """Parameters of the input or of an output. content_type, which clients of MLServer write, has no effect."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    content_type: str | None = None


class InferInput(StrictModel):
    """The images, as `data` in row-major order, flat or nested, or as bytes. There is one input, with any name."""

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: Literal["FP32"]
    parameters: TensorParameters | None = None
    data: Numbers | None = None


class RequestedOutput(StrictModel):
    """An output to return."""

    name: OutputName
    parameters: TensorParameters | None = None


class InferParameters(StrictModel):
    """Settings of a request. purify: by default whether the model can be purified. eps_pfy: by default min-aux."""

    purify: bool | None = None
    eps_pfy: Annotated[float, Field(ge=0, le=1)] | Literal["min-aux"] | None = None
    binary_data_output: bool | None = None
    content_type: str | None = None

    def operation(self, model: JointModel) -> Operation:
        """Purification, or prediction alone."""
        if model.purifiable if self.purify is None else self.purify:
            return Purify.of(model, "min-aux" if self.eps_pfy is None else self.eps_pfy)
        if self.eps_pfy is not None:
            raise InputError("eps_pfy is a setting of purification; remove it, or set purify to true.")
        return Predict()


class InferRequest(StrictModel):
    """Body of an inference request. Without `outputs`, the response has all."""

    model_config = ConfigDict(extra="ignore")  # clients of KServe repeat the model's name

    id: str | None = None
    parameters: InferParameters | None = None
    inputs: list[InferInput] = Field(min_length=1, max_length=1)
    outputs: list[RequestedOutput] | None = None


REQUEST_BODY, REQUEST_COMPONENTS = image_schema(InferRequest)


def add_open_inference(app: FastAPI, service: InferenceService) -> None:
    """Add the routes of the protocol."""
    refusals = partial(error_schemas, model=ProtocolErrorResponse)
    names = {"enum": list(service.models)}  # another name is status 404, not 422
    model_name = Annotated[str, Path(description="The model.", json_schema_extra=names)]

    def find_model(name: str) -> JointModel:
        if name not in service.models:
            raise HTTPException(404, str(unknown("model", name, service.models)))
        return service.models[name].model

    @app.get("/v2", responses=refusals(401, 421))
    async def server_metadata() -> dict[str, str | list[str]]:
        """Name, version and extensions of this server."""
        return {"name": "soap", "version": __version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live", responses=refusals(421, 503))
    @app.get("/v2/health/ready", responses=refusals(421, 503))
    async def protocol_health() -> dict[str, bool]:
        """Report whether the service works."""
        service.check_health()
        return {"live": True, "ready": True}

    @app.get("/v2/models/{name}", responses=refusals(401, 404, 421))
    async def model_metadata(name: model_name) -> dict[str, Any]:
        """Describe the input and the outputs of a model; -1 is the number of images."""
        model = find_model(name)
        shapes = {"logits": [-1, model.classes]}
        outputs = [
            {"name": one, "datatype": OUTPUTS[one][0], "shape": shapes.get(one, [-1])} for one in output_names(model)
        ]
        inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, *model.input_shape]}]
        return {"name": name, "versions": [], "platform": "soap", "inputs": inputs, "outputs": outputs}

    @app.get("/v2/models/{name}/ready", responses=refusals(401, 404, 421, 503))
    async def model_ready(name: model_name) -> dict[str, str | bool]:
        """Report whether a model works."""
        find_model(name)
        service.check_health(name)
        return {"name": name, "ready": True}

    @app.post(
        INFER_ROUTE,
        response_model=dict[str, Any],
        responses=refusals(400, 401, 404, 408, 413, 421, 422, 503),
        openapi_extra=REQUEST_BODY,
    )
    async def infer(request: Request, name: model_name) -> Response:
        """Purify and classify a batch of images."""
        length = request.headers.get(JSON_LENGTH_HEADER)
        decode = partial(decode_request, json_length=length, model=find_model(name), limits=service.limits)
        return await service.run(request, name, decode)


def output_names(model: JointModel) -> list[OutputName]:
    """The outputs that a model has."""
    return list(OUTPUTS) if model.purifiable else ["logits", "label"]


def decode_request(body: bytes, *, json_length: str | None, model: JointModel, limits: Limits) -> DecodedRequest:
    """Read an inference request; json_length is the value of its header `JSON_LENGTH_HEADER`."""
    size = len(body)
    if json_length is not None:
        size = int(json_length) if json_length.isdecimal() and len(json_length) < 20 else size + 1
    if size > len(body):
        raise HTTPException(400, f"{JSON_LENGTH_HEADER} is not a number of bytes of the body; send the JSON's length.")
    request = parse_json(InferRequest, body[:size], limits)
    x = read_images(request.inputs[0], body[size:], model=model, limits=limits)
    available, parameters, binary = output_names(model), request.parameters or InferParameters(), {}
    for one in request.outputs or [RequestedOutput(name=name) for name in available]:
        if one.name not in available:
            raise InputError(f"output is {one.name}, but {model.name} cannot be purified; its outputs are {available}.")
        own = one.parameters and one.parameters.binary_data
        binary[one.name] = bool(parameters.binary_data_output if own is None else own)
    respond = partial(encode_response, name=model.name, request_id=request.id, binary=binary)
    return DecodedRequest(parameters.operation(model), list(x), None, respond)


def read_images(given: InferInput, binary: bytes, *, model: JointModel, limits: Limits) -> Float[Tensor, "n *shape"]:
    """The input as a tensor."""
    shape, most = list(model.input_shape), limits.batch_size
    if given.shape[1:] != shape or not 1 <= given.shape[0] <= most:
        raise InputError(f"the input has shape {given.shape}, expected [n, {str(shape)[1:]} with n from 1 to {most}.")
    size, numbers = given.parameters and given.parameters.binary_data_size, prod(given.shape)
    if (size is None) == (given.data is None) or len(binary) != (size or 0) or size not in (None, 4 * numbers):
        raise InputError(
            f"the input has binary_data_size {size} and {len(binary)} bytes behind the JSON; send either data, or "
            f"{4 * numbers} bytes: 4 for each number of the shape."
        )
    try:
        x = torch.tensor(np.frombuffer(binary, "<f4") if given.data is None else given.data).reshape(given.shape)
    except (ValueError, TypeError, RuntimeError) as error:  # TypeError: lists of different depth
        raise InputError(f"data does not have the shape {given.shape}; send {numbers} numbers.") from error
    validate.inputs(x)
    return x


def encode_response(
    trajectories: list[Trajectory], *, name: str, request_id: str | None, binary: Mapping[OutputName, bool]
) -> Response:
    """The response with the outputs in `binary`: as bytes behind the JSON where true, else as JSON numbers."""
    outputs, tail = [], b""
    for output, as_bytes in binary.items():
        datatype, value = OUTPUTS[output]
        values = np.asarray([value(one) for one in trajectories], NUMPY_TYPES[datatype])
        size = {"parameters": {"binary_data_size": values.nbytes}}
        content = size if as_bytes else {"data": values.ravel().tolist()}
        outputs.append({"name": output, "datatype": datatype, "shape": values.shape, **content})
        tail += values.tobytes() if as_bytes else b""
    identity = {} if request_id is None else {"id": request_id}
    head = json.dumps({"model_name": name, **identity, "outputs": outputs}, allow_nan=False).encode()
    headers = {JSON_LENGTH_HEADER: str(len(head))} if tail else {}
    return Response(head + tail, media_type="application/octet-stream" if tail else "application/json", headers=headers)
