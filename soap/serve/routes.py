"""The routes: each reads its parameters, asks the service, and answers."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from soap.errors import InputError, unknown
from soap.serve import answers, arrays, page
from soap.serve.operations import Mislead, Predict, Purify
from soap.serve.problems import busy, documented
from soap.serve.service import JSON_TYPE, PICTURE_TYPES, Service
from soap.serve.subject import OFFERED, Subject

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A PNG or JPEG picture, or the image as JSON numbers.",
        "content": {
            **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in PICTURE_TYPES},
            JSON_TYPE: {"schema": arrays.SCHEMA},
        },
    }
}
FAILURES = documented(400, 401, 408, 413, 415, 421, 422, 503)
DOORS = documented(401, 421)


class ModelAnswer(BaseModel):
    """A served model: what it takes, what it tells apart, and the settings that apply where a request gives none.

    browser_bytes: what the page loads to run it in the browser alone; null where it cannot.
    """

    name: str
    data: str
    task: str | None
    purifiable: bool
    input_shape: list[int]
    classes: list[str]
    attacks: dict[str, dict[str, Any]]
    purification: dict[str, Any] | None
    browser_bytes: int | None


class ModelsAnswer(BaseModel):
    """All served models; the first is the default."""

    models: list[ModelAnswer]


class HealthAnswer(BaseModel):
    """That the service is up."""

    status: str
    models: int


async def only_known(request: Request) -> None:
    """Refuse a parameter that the route does not have: it was meant, and would go unheard.

    Asynchronous, since a plain function would cost every request the way to another thread and back.
    """
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise unknown("parameter", name, known)


def router(service: Service) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter()
    limits, names = service.limits, list(service.subjects)
    sizes = page.in_browser(page.STATIC, service.subjects.values())
    model_name = Annotated[
        str | None, Query(description="Default: the first served.", json_schema_extra={"enum": names})
    ]
    attack_name = Annotated[str, Query(description="How to attack.", json_schema_extra={"enum": list(OFFERED)})]
    inverted = Annotated[bool, Query(description="Swap dark and light first: digits are light on dark.")]
    with_input = Annotated[bool, Query(description="Put the picture as the model got it into the answer.")]
    with_pictures = Annotated[bool, Query(description="Put picture and probabilities of every step into the answer.")]
    step_count = Annotated[int | None, Query(ge=1, le=limits.steps, description="Default: the paper's.")]

    @routes.post("/v1/predict", responses=FAILURES, openapi_extra=BODY, dependencies=[Depends(only_known)])
    async def predict(
        request: Request, model: model_name = None, pictures: with_input = False, invert: inverted = False
    ) -> answers.PredictAnswer:
        """What the bare classifier sees in a picture."""
        subject = service.subject(model)
        walk = await service.walk(request, subject, Predict(), invert=invert)
        return await service.paint(lambda: answers.predicted(subject, walk, pictures=pictures))

    @routes.post("/v1/purify", responses=FAILURES, openapi_extra=BODY, dependencies=[Depends(only_known)])
    async def purify(
        request: Request,
        model: model_name = None,
        eps_pfy: Annotated[str, Query(max_length=32, description="min-aux, or a radius in [0, 1].")] = "min-aux",
        steps: step_count = None,
        pictures: with_pictures = False,
        invert: inverted = False,
    ) -> answers.PurifyAnswer:
        """Purify a picture: walk down the auxiliary loss inside a small ball. Every step is told."""
        subject = service.subject(model)
        operation = Purify.of(subject.model, _radius(eps_pfy), steps)
        walk = await service.walk(request, subject, operation, invert=invert)
        return await service.paint(lambda: answers.purified(subject, walk, pictures=pictures))

    @routes.post("/v1/attack", responses=FAILURES, openapi_extra=BODY, dependencies=[Depends(only_known)])
    async def attack(
        request: Request,
        model: model_name = None,
        attack: attack_name = "pgd",
        eps: Annotated[float | None, Query(ge=0, le=1, description="Of fgsm and pgd. Default: the paper's.")] = None,
        steps: step_count = None,
        label: Annotated[int | None, Query(ge=0, description="The true class. Default: what the model sees.")] = None,
        pictures: with_pictures = False,
        invert: inverted = False,
    ) -> answers.AttackAnswer:
        """Attack a picture, as one who does not know the purifier. Every step of fgsm and pgd is told."""
        subject = service.subject(model)
        method = subject.attack(attack, eps=eps, steps=steps)
        walk = await service.walk(request, subject, Mislead(attack=method), invert=invert, label=label)
        return await service.paint(lambda: answers.attacked(subject, walk, method, pictures=pictures))

    @routes.get("/v1/models", responses=DOORS)
    async def models() -> ModelsAnswer:
        """The served models."""
        return ModelsAnswer(models=[_described(it, sizes.get(it.name)) for it in service.subjects.values()])

    @routes.get("/healthz", responses=documented(421, 503))
    async def health() -> HealthAnswer:
        """Whether the service works."""
        if not service.healthy:
            raise busy("a model's worker has stopped")
        return HealthAnswer(status="ok", models=len(names))

    @routes.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **DOORS}, response_class=Response)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return routes


def _radius(text: str) -> float | str:
    """A radius in [0, 1], or the name of a way to choose one."""
    try:
        radius = float(text)
    except ValueError:
        return text
    if not 0 <= radius <= 1:
        raise InputError(f"eps_pfy is {text}, want min-aux or a radius in [0, 1].")
    return radius


def _described(subject: Subject, browser_bytes: int | None) -> ModelAnswer:
    own = subject.model.purification
    keys = ("eps", "step_size", "steps", "radius")
    return ModelAnswer(
        name=subject.name,
        data=subject.recipe.data,
        task=subject.recipe.task,
        purifiable=subject.model.purifiable,
        input_shape=list(subject.shape),
        classes=list(subject.classes),
        attacks={
            name: {key: getattr(attack, key) for key in keys if hasattr(attack, key)}
            for name, attack in subject.attacks.items()
        },
        purification=None if own is None else {"step_size": own.step_size, "steps": own.steps, "grid": own.grid},
        browser_bytes=browser_bytes,
    )
