"""JSON responses of the routes: their schemas, and how they are made from a trajectory or an exception."""

import base64
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from soap.attacks import Attack
from soap.balls import row_norms
from soap.data.pictures import PictureTooLargeError, UnsupportedPictureError, encode_png, magnify_difference
from soap.errors import SoapError
from soap.recipes.trained_model import TrainedModel
from soap.serve.trajectories import Trajectory
from soap.shapes import Tensor

OFFERED_ATTACKS = ("fgsm", "pgd", "df")
"""The paper's attacks that finish within a request's deadline; Carlini and Wagner's takes longer."""

TOP_CLASSES = 3
"""Most probable classes listed for each step."""

ERROR_KINDS = {400: "request", 401: "token", 404: "route", 405: "method", 408: "slow", 413: "size", 415: "format",
               421: "host", 422: "input", 499: "gone", 503: "busy"}  # fmt: skip
"""Error kind by status."""

ERROR_STATUSES: dict[type[Exception], int] = {UnsupportedPictureError: 415, PictureTooLargeError: 413}
"""Status by exception; 422 for others."""

ERROR_HEADERS = {
    400: {"Connection": "close"},  # the body was not read to its end, or its length is not known
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    413: {"Connection": "close"},
    503: {"Retry-After": "1"},
}
"""Response headers by status. A full queue is empty again in less than a second."""

ClassNumber = Annotated[int, Field(serialization_alias="class")]
"""The JSON name "class" is a keyword in Python."""


class ClassProbability(BaseModel):
    """One class and its probability."""

    class_number: ClassNumber
    name: str
    probability: float


class Prediction(BaseModel):
    """Prediction of the bare classifier: the most probable class, its name, and the probability of every class."""

    class_number: ClassNumber
    name: str
    probabilities: list[float]


class StepResponse(ClassProbability):
    """One point of a trajectory; step 0 is the input.

    probabilities (of every class) and picture (base64 PNG) are present if the request has pictures=true.
    """

    step: int
    aux_loss: float | None
    top: list[ClassProbability]
    probabilities: list[float] | None = None
    picture: str | None = None


class PredictResponse(Prediction):
    """Response of /v1/predict. aux_loss and score (the same value) are null for a model without an auxiliary task.

    input: base64 PNG of the image as the model receives it, if the request has pictures=true.
    """

    model: str
    aux_loss: float | None
    score: float | None
    input: str | None = None


class TrajectoryResponse(Prediction):
    """Prediction at the end of a trajectory, prediction at its start (`before`), and every step.

    score: how suspicious the input is, higher for more; the auxiliary loss before the first step.

    input, image, difference: base64 PNG of the input as the model receives it, of the result, and of their difference
    around mid grey, multiplied by `magnification`.
    """

    model: str
    before: Prediction
    score: float | None
    aux_loss_before: float | None
    aux_loss_after: float | None
    input: str
    image: str
    difference: str
    magnification: float
    steps: list[StepResponse]


class PurifyResponse(TrajectoryResponse):
    """Response of /v1/purify. eps is the radius used. The numbers belong to the image before rounding to 8 bits."""

    eps: float | None


class AttackResponse(TrajectoryResponse):
    """Response of /v1/attack: settings, the class attacked, whether the prediction differs from it, and the distances.

    eps is null for an attack without a radius. The numbers belong to `image`, which has 8 bits.
    """

    attack: str
    eps: float | None
    label: int
    fooled: bool
    linf: float
    l2: float


class ModelResponse(BaseModel):
    """A served model: its input, its classes, and the settings used if a request gives none.

    browser_bytes: bytes that the page loads to run the model in the browser; null if it cannot.
    """

    name: str
    data: str | None
    task: str | None
    purifiable: bool
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    attacks: dict[str, dict[str, Any]]
    purification: dict[str, Any] | None
    browser_bytes: int | None


class ErrorDetail(BaseModel):
    """kind: a fixed word for programs. message: what was given, what is expected, what to do."""

    kind: str
    message: str


class ErrorResponse(BaseModel):
    """Body of every error response, except under /v2."""

    error: ErrorDetail


class ProtocolErrorResponse(BaseModel):
    """Body of every error response under /v2, as the Open Inference Protocol has it."""

    error: str


def predict_response(served: TrainedModel, trajectory: Trajectory, *, pictures: bool) -> PredictResponse:
    """The response of /v1/predict."""
    step = _step(served, trajectory, 0, pictures=pictures)
    found = {**_prediction(served, trajectory, 0), "model": served.model.name, "input": step.picture}
    return PredictResponse(**found, aux_loss=step.aux_loss, score=step.aux_loss)


def purify_response(served: TrainedModel, trajectory: Trajectory, *, pictures: bool) -> PurifyResponse:
    """The response of /v1/purify."""
    return PurifyResponse(**_trajectory(served, trajectory, pictures=pictures), eps=trajectory.eps)


def attack_response(served: TrainedModel, trajectory: Trajectory, *, attack: Attack, pictures: bool) -> AttackResponse:
    """The response of /v1/attack."""
    delta = trajectory.points[-1:] - trajectory.points[:1]
    return AttackResponse(
        **_trajectory(served, trajectory, pictures=pictures),
        attack=repr(attack),
        eps=getattr(attack, "eps", None),
        label=trajectory.label,
        fooled=int(trajectory.probabilities[-1].argmax()) != trajectory.label,
        linf=float(delta.abs().max()),
        l2=float(row_norms(delta)[0]),
    )


def model_response(served: TrainedModel, browser_bytes: int | None) -> ModelResponse:
    """One model in the response of /v1/models."""
    model, own, attack_settings = served.model, served.model.purification, ("eps", "step_size", "steps", "radius")
    return ModelResponse(
        name=model.name,
        data=served.data,
        task=served.task,
        purifiable=model.purifiable,
        input_shape=model.input_shape,
        classes=served.classes,
        attacks={name: _settings(served.attack(name), *attack_settings) for name in OFFERED_ATTACKS},
        purification=None if own is None else _settings(own, "step_size", "steps", "grid"),
        browser_bytes=browser_bytes,
    )


def _trajectory(served: TrainedModel, trajectory: Trajectory, *, pictures: bool) -> dict[str, Any]:
    """The fields of `TrajectoryResponse`."""
    first, last = trajectory.points[0], trajectory.points[-1]
    difference, magnification = magnify_difference(last - first)
    steps = [_step(served, trajectory, t, pictures=pictures) for t in range(len(trajectory.points))]
    return {
        **_prediction(served, trajectory, -1),
        "model": served.model.name,
        "before": Prediction(**_prediction(served, trajectory, 0)),
        "score": steps[0].aux_loss,
        "aux_loss_before": steps[0].aux_loss,
        "aux_loss_after": steps[-1].aux_loss,
        "input": _base64_png(first),
        "image": _base64_png(last),
        "difference": _base64_png(difference),
        "magnification": magnification,
        "steps": steps,
    }


def _prediction(served: TrainedModel, trajectory: Trajectory, t: int) -> dict[str, Any]:
    """The fields of `Prediction` at step t."""
    label = int(trajectory.probabilities[t].argmax())
    rounded = [round(value, 6) for value in trajectory.probabilities[t].tolist()]
    return {"class_number": label, "name": served.classes[label], "probabilities": rounded}


def _step(served: TrainedModel, trajectory: Trajectory, t: int, *, pictures: bool) -> StepResponse:
    order = trajectory.probabilities[t].argsort(descending=True, stable=True)[:TOP_CLASSES].tolist()
    rounded = _prediction(served, trajectory, t)["probabilities"]
    top = [ClassProbability(class_number=i, name=served.classes[i], probability=rounded[i]) for i in order]
    return StepResponse(
        **top[0].model_dump(),
        step=t,
        aux_loss=None if trajectory.losses is None else float(trajectory.losses[t]),
        top=top,
        probabilities=rounded if pictures else None,
        picture=_base64_png(trajectory.points[t]) if pictures else None,
    )


def _settings(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names if hasattr(of, name)}


def _base64_png(x: Tensor) -> str:
    return base64.b64encode(encode_png(x)).decode()


def busy(reason: str) -> HTTPException:
    """Error 503: the service is overloaded or failed; the client may retry."""
    return HTTPException(503, f"{reason}; try again in {ERROR_HEADERS[503]['Retry-After']} s.")


def error_response(error: Exception, path: str = "") -> JSONResponse:
    """The response to an exception of a request to `path`; status 422 if the request has a wrong value."""
    status, message, headers = ERROR_STATUSES.get(type(error), 422), str(error), {}
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, error.detail, dict(error.headers or {})
        if not message.endswith("."):  # starlette's message for an unknown route or method
            message += "; /docs lists the routes and their methods."
    elif isinstance(error, RequestValidationError):  # its values are not repeated: they are the client's input
        parameter = error.errors()[0]["loc"][1]
        reasons = [one["msg"] for one in error.errors() if one["loc"][1] == parameter]  # one for each accepted type
        message = f"{parameter}: {', or: '.join(reasons)}; see /docs."
    detail = {"kind": ERROR_KINDS.get(status, "request"), "message": message}
    content = {"error": message if path.startswith("/v2") else detail}
    return JSONResponse(content, status, {**ERROR_HEADERS.get(status, {}), **headers})


def error_schemas(*statuses: int, model: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for its OpenAPI schema."""
    return {status: {"model": model, "description": HTTPStatus(status).phrase} for status in statuses}


async def _handle(request: Request, error: Exception) -> JSONResponse:
    return error_response(error, request.scope["path"])


HANDLERS: dict[int | type[Exception], Callable[..., Any]] = dict.fromkeys(
    (HTTPException, RequestValidationError, SoapError), _handle
)
"""Exception handlers of the application, for every expected exception of a route."""
