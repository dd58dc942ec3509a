"""What the routes answer, as JSON: the schema of each answer, and how it is made of an image's walk."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from soap.balls import row_norms
from soap.serve.operations import Walk
from soap.serve.pictures import encode, magnified
from soap.serve.subject import Subject
from soap.shapes import Tensor

TOP = 3
"""Classes told for every step."""

ClassNumber = Annotated[int, Field(serialization_alias="class")]
"""JSON has it as "class", a word that Python keeps for itself."""


class Candidate(BaseModel):
    """One class and its probability."""

    seen: ClassNumber
    name: str
    probability: float


class Prediction(BaseModel):
    """What the bare classifier sees in an image: the likeliest class, its name, and the probability of every class."""

    seen: ClassNumber
    name: str
    probabilities: list[float]


class Step(BaseModel):
    """One point of a walk; number 0 is the image as it came.

    probabilities of every class, and picture, a base64 PNG: where pictures were asked for.
    """

    step: int
    aux_loss: float | None
    seen: ClassNumber
    name: str
    probability: float
    top: list[Candidate]
    probabilities: list[float] | None = None
    picture: str | None = None


class PredictAnswer(Prediction):
    """The answer of /v1/predict; aux_loss is null for a model without an auxiliary task.

    input: base64 PNG of the image as the model got it, where pictures were asked for.
    """

    model: str
    aux_loss: float | None
    input: str | None = None


class WalkAnswer(Prediction):
    """What a walk led to (class, name and probabilities are those of its end), where it began, and every step.

    input, image, difference: base64 PNG of the image as the model got it, of the end, and of their difference, about
    mid grey and magnified `magnification` times.
    """

    model: str
    before: Prediction
    aux_loss_before: float | None
    aux_loss_after: float | None
    input: str
    image: str
    difference: str
    magnification: float
    steps: list[Step]


class PurifyAnswer(WalkAnswer):
    """The answer of /v1/purify; eps is the radius that was used. The picture is rounded to 8 bits, the figures not."""

    eps: float | None


class AttackAnswer(WalkAnswer):
    """The answer of /v1/attack: the settings, the class it led away from, whether it did, and how far it went.

    eps is null for an attack without a radius of its own. All figures are those of `image`, in 8 bits.
    """

    attack: str
    eps: float | None
    label: int
    fooled: bool
    linf: float
    l2: float


def predicted(subject: Subject, walk: Walk, *, pictures: bool) -> PredictAnswer:
    """The answer of /v1/predict."""
    return PredictAnswer(
        model=subject.name,
        aux_loss=_loss(walk, 0),
        input=encode(walk.points[0]) if pictures else None,
        **_prediction(subject, walk, -1),
    )


def purified(subject: Subject, walk: Walk, *, pictures: bool) -> PurifyAnswer:
    """The answer of /v1/purify."""
    return PurifyAnswer(eps=walk.eps, **_walked(subject, walk, pictures=pictures))


def attacked(subject: Subject, walk: Walk, attack: object, *, pictures: bool) -> AttackAnswer:
    """The answer of /v1/attack."""
    delta = walk.points[-1:] - walk.points[:1]
    shared = _walked(subject, walk, pictures=pictures)
    return AttackAnswer(
        attack=repr(attack),
        eps=getattr(attack, "eps", None),
        label=walk.label,
        fooled=int(walk.probabilities[-1].argmax()) != walk.label,
        linf=float(delta.abs().max()),
        l2=float(row_norms(delta)[0]),
        **shared,
    )


def _walked(subject: Subject, walk: Walk, *, pictures: bool) -> dict[str, Any]:
    first, last = walk.points[0], walk.points[-1]
    difference, magnification = magnified(last - first)
    return {
        **_prediction(subject, walk, -1),
        "model": subject.name,
        "before": Prediction(**_prediction(subject, walk, 0)),
        "aux_loss_before": _loss(walk, 0),
        "aux_loss_after": _loss(walk, -1),
        "input": encode(first),
        "image": encode(last),
        "difference": encode(difference),
        "magnification": magnification,
        "steps": [_step(subject, walk, t, pictures=pictures) for t in range(len(walk.points))],
    }


def _prediction(subject: Subject, walk: Walk, t: int) -> dict[str, Any]:
    label = int(walk.probabilities[t].argmax())
    return {"seen": label, "name": subject.classes[label], "probabilities": _rounded(walk.probabilities[t])}


def _step(subject: Subject, walk: Walk, t: int, *, pictures: bool) -> Step:
    order = walk.probabilities[t].argsort(descending=True, stable=True)[:TOP].tolist()
    shares = _rounded(walk.probabilities[t])
    top = [Candidate(seen=label, name=subject.classes[label], probability=shares[label]) for label in order]
    return Step(
        step=t,
        aux_loss=_loss(walk, t),
        seen=top[0].seen,
        name=top[0].name,
        probability=top[0].probability,
        top=top,
        probabilities=shares if pictures else None,
        picture=encode(walk.points[t]) if pictures else None,
    )


def _loss(walk: Walk, t: int) -> float | None:
    return None if walk.losses is None else float(walk.losses[t])


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]
