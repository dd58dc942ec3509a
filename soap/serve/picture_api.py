"""The service's own API: for each route its parameters, its operation and its response.

A query is the parameters of one route, /v1/ and its name.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field

from soap.balls import row_norms
from soap.data.pictures import base64_png, magnify_difference
from soap.errors import InputError
from soap.recipes.trained_model import TrainedModel
from soap.serve.trajectories import AttackClassifier, Operation, Predict, Purify, Trajectory

OfferedAttack = Literal["fgsm", "pgd", "df"]
"""The paper's attacks that finish within a request's deadline; Carlini and Wagner's takes longer."""

MAX_STEPS = 100
"""Steps of one attack or purification."""

TOP_CLASSES = 3
"""Most probable classes listed for each step."""

ClassNumber = Annotated[int, Field(serialization_alias="class")]
"""The JSON name "class" is a keyword in Python."""

Radius = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[int | None, Field(ge=1, le=MAX_STEPS, description="Default: the paper's.")]


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

    @classmethod
    def of(cls, served: TrainedModel, browser_bytes: int | None) -> "ModelResponse":
        """Describe a served model."""
        model, attacks = served.model, {name: served.attack(name) for name in get_args(OfferedAttack)}
        return cls(
            name=model.name,
            data=served.data,
            task=served.task,
            purifiable=model.purifiable,
            input_shape=model.input_shape,
            classes=served.classes,
            attacks={name: _settings(of, "eps", "step_size", "steps", "radius") for name, of in attacks.items()},
            purification=_settings(model.purification, "step_size", "steps", "grid") if model.purification else None,
            browser_bytes=browser_bytes,
        )


class PredictQuery(BaseModel):
    """Classify a picture with the bare classifier."""

    model: str
    pictures: bool = Field(False, description="Return the pictures and probabilities of every step.")
    invert: bool = Field(False, description="Swap dark and light first: MNIST digits are light on dark.")

    def operation(self, served: TrainedModel) -> Operation:
        """What to run on the picture."""
        return Predict()

    def respond(self, served: TrainedModel, found: Trajectory) -> BaseModel:
        """The response."""
        step = self.step(served, found, 0)
        loss: dict[str, Any] = {"aux_loss": step.aux_loss, "score": step.aux_loss}
        return PredictResponse(**_prediction(served, found, 0), model=served.model.name, input=step.picture, **loss)

    def step(self, served: TrainedModel, found: Trajectory, t: int) -> StepResponse:
        """The response for one point of the trajectory."""
        order = found.probabilities[t].argsort(descending=True, stable=True)[:TOP_CLASSES].tolist()
        rounded = _prediction(served, found, t)["probabilities"]
        top = [ClassProbability(class_number=i, name=served.classes[i], probability=rounded[i]) for i in order]
        return StepResponse(
            **dict(top[0]),
            step=t,
            aux_loss=None if found.losses is None else float(found.losses[t]),
            top=top,
            probabilities=rounded if self.pictures else None,
            picture=base64_png(found.points[t]) if self.pictures else None,
        )

    def trajectory(self, served: TrainedModel, found: Trajectory) -> dict[str, Any]:
        """The fields of `TrajectoryResponse`."""
        first, last = found.points[0], found.points[-1]
        difference, magnification = magnify_difference(last - first)
        steps = [self.step(served, found, t) for t in range(len(found.points))]
        return {
            **_prediction(served, found, -1),
            "model": served.model.name,
            "before": Prediction(**_prediction(served, found, 0)),
            "score": steps[0].aux_loss,
            "aux_loss_before": steps[0].aux_loss,
            "aux_loss_after": steps[-1].aux_loss,
            "input": base64_png(first),
            "image": base64_png(last),
            "difference": base64_png(difference),
            "magnification": magnification,
            "steps": steps,
        }


class PurifyQuery(PredictQuery):
    """Purify a picture: minimise the auxiliary loss inside a small ball. The response has every step."""

    eps_pfy: Radius | Literal["min-aux"] = Field("min-aux", description="min-aux, or a radius in [0, 1].")
    steps: Steps = None

    def operation(self, served: TrainedModel) -> Operation:
        """Purification with the model's own settings for those not given."""
        return Purify.of(served.model, self.eps_pfy, self.steps)

    def respond(self, served: TrainedModel, found: Trajectory) -> BaseModel:
        """The response."""
        return PurifyResponse(**self.trajectory(served, found), eps=found.eps)


class AttackQuery(PredictQuery):
    """Attack the bare classifier; the attack ignores the purifier. The response has every step of fgsm and pgd."""

    attack: OfferedAttack = Field("pgd", description="The attack.")
    eps: Radius | None = Field(None, description="For fgsm and pgd. Default: the paper's.")
    steps: Steps = None
    label: int | None = Field(None, ge=0, description="The true class. Default: the prediction.")

    def operation(self, served: TrainedModel) -> AttackClassifier:
        """The attack, with the paper's settings for those not given."""
        if self.label is not None and self.label >= served.model.classes:
            raise InputError(f"label is {self.label}, expected a class from 0 to {served.model.classes - 1}.")
        given = {"eps": self.eps, "steps": self.steps}
        settings = {name: value for name, value in given.items() if value is not None}
        return AttackClassifier(attack=served.attack(self.attack, settings=settings))

    def respond(self, served: TrainedModel, found: Trajectory) -> BaseModel:
        """The response."""
        attack, delta = self.operation(served).attack, found.points[-1:] - found.points[:1]
        return AttackResponse(
            **self.trajectory(served, found),
            attack=repr(attack),
            eps=getattr(attack, "eps", None),
            label=found.label,
            fooled=int(found.probabilities[-1].argmax()) != found.label,
            linf=float(delta.abs().max()),
            l2=float(row_norms(delta)[0]),
        )


def _prediction(served: TrainedModel, found: Trajectory, t: int) -> dict[str, Any]:
    """The fields of `Prediction` at step t."""
    label = int(found.probabilities[t].argmax())
    rounded = [round(value, 6) for value in found.probabilities[t].tolist()]
    return {"class_number": label, "name": served.classes[label], "probabilities": rounded}


def _settings(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names if hasattr(of, name)}
