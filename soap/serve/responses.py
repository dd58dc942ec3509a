"""JSON responses of the routes: their schemas, and how they are made from a trajectory."""

import base64
from typing import Annotated, Any

from pydantic import BaseModel, Field

from soap.attacks import Attack
from soap.balls import row_norms
from soap.data.pictures import encode_png, magnify_difference
from soap.serve.operations import ServedModel, Trajectory
from soap.shapes import Tensor

TOP_CLASSES = 3
"""Most probable classes listed for each step."""

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
    """Response of /v1/predict. aux_loss is null for a model without an auxiliary task.

    input: base64 PNG of the image as the model receives it, if the request has pictures=true.
    """

    model: str
    aux_loss: float | None
    input: str | None = None


class TrajectoryResponse(Prediction):
    """Prediction at the end of a trajectory, prediction at its start (`before`), and every step.

    input, image, difference: base64 PNG of the input as the model receives it, of the result, and of their difference
    around mid grey, multiplied by `magnification`.
    """

    model: str
    before: Prediction
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
    data: str
    task: str | None
    purifiable: bool
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    attacks: dict[str, dict[str, Any]]
    purification: dict[str, Any] | None
    browser_bytes: int | None


def predict_response(served: ServedModel, trajectory: Trajectory, *, pictures: bool) -> PredictResponse:
    """The response of /v1/predict."""
    return PredictResponse(
        **_prediction(served, trajectory, -1),
        model=served.name,
        aux_loss=_loss(trajectory, 0),
        input=_base64_png(trajectory.points[0]) if pictures else None,
    )


def purify_response(served: ServedModel, trajectory: Trajectory, *, pictures: bool) -> PurifyResponse:
    """The response of /v1/purify."""
    return PurifyResponse(**_trajectory(served, trajectory, pictures=pictures), eps=trajectory.eps)


def attack_response(served: ServedModel, trajectory: Trajectory, attack: Attack, *, pictures: bool) -> AttackResponse:
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


def model_response(served: ServedModel, browser_bytes: int | None) -> ModelResponse:
    """One model in the response of /v1/models."""
    own = served.model.purification
    return ModelResponse(
        name=served.name,
        data=served.recipe.data,
        task=served.recipe.task,
        purifiable=served.model.purifiable,
        input_shape=served.model.input_shape,
        classes=served.classes,
        attacks={
            name: _settings(attack, "eps", "step_size", "steps", "radius") for name, attack in served.attacks.items()
        },
        purification=None if own is None else _settings(own, "step_size", "steps", "grid"),
        browser_bytes=browser_bytes,
    )


def _trajectory(served: ServedModel, trajectory: Trajectory, *, pictures: bool) -> dict[str, Any]:
    """The fields of `TrajectoryResponse`."""
    first, last = trajectory.points[0], trajectory.points[-1]
    difference, magnification = magnify_difference(last - first)
    return {
        **_prediction(served, trajectory, -1),
        "model": served.name,
        "before": Prediction(**_prediction(served, trajectory, 0)),
        "aux_loss_before": _loss(trajectory, 0),
        "aux_loss_after": _loss(trajectory, -1),
        "input": _base64_png(first),
        "image": _base64_png(last),
        "difference": _base64_png(difference),
        "magnification": magnification,
        "steps": [_step(served, trajectory, t, pictures=pictures) for t in range(len(trajectory.points))],
    }


def _prediction(served: ServedModel, trajectory: Trajectory, t: int) -> dict[str, Any]:
    """The fields of `Prediction` at step t."""
    label = int(trajectory.probabilities[t].argmax())
    rounded = [round(value, 6) for value in trajectory.probabilities[t].tolist()]
    return {"class_number": label, "name": served.classes[label], "probabilities": rounded}


def _step(served: ServedModel, trajectory: Trajectory, t: int, *, pictures: bool) -> StepResponse:
    order = trajectory.probabilities[t].argsort(descending=True, stable=True)[:TOP_CLASSES].tolist()
    rounded = _prediction(served, trajectory, t)["probabilities"]
    top = [ClassProbability(class_number=i, name=served.classes[i], probability=rounded[i]) for i in order]
    return StepResponse(
        **top[0].model_dump(),
        step=t,
        aux_loss=_loss(trajectory, t),
        top=top,
        probabilities=rounded if pictures else None,
        picture=_base64_png(trajectory.points[t]) if pictures else None,
    )


def _settings(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names if hasattr(of, name)}


def _loss(trajectory: Trajectory, t: int) -> float | None:
    return None if trajectory.losses is None else float(trajectory.losses[t])


def _base64_png(x: Tensor) -> str:
    return base64.b64encode(encode_png(x)).decode()
