"""The ASGI application: routes and pages behind admission and the access log."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import torch
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from soap import __version__
from soap.errors import InputError, unknown
from soap.serve import responses, web_page
from soap.serve.admission import Admission, check_binding
from soap.serve.http_errors import busy, error_responses, install_handlers
from soap.serve.inference import InferenceService
from soap.serve.limits import Limits
from soap.serve.monitoring import AccessLog
from soap.serve.operations import OFFERED_ATTACKS, AttackClassifier, Predict, Purify
from soap.serve.request_images import OPENAPI_BODY


def create_app(
    models: Sequence[str],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    device: str | torch.device = "cpu",
    host: str = "127.0.0.1",
) -> FastAPI:
    """Load `models` (bundled names, or paths of .safetensors files) and return the application that serves them.

    token: clients must send it as `Authorization: Bearer`. host: the address that the server listens on. A token is
    required unless `host` is loopback; on loopback, requests with the Host header of another machine are refused.
    """
    check_binding(host, token)
    limits = limits or Limits()
    service = InferenceService(models, limits, device)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        trimming = asyncio.create_task(service.trim_memory())
        yield
        trimming.cancel()
        service.close()

    app = FastAPI(
        title="soap",
        version=__version__,
        description="Predict, attack and purify pictures. The service does not store what clients send.",
        docs_url=None,  # FastAPI's own pages load scripts from other sites
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    install_handlers(app)
    add_routes(app, service)
    web_page.add_pages(app, web_page.STATIC)
    # The middleware that is added last runs first.
    app.add_middleware(Admission, host=host, token=token, limits=limits, workers=service.workers)
    app.add_middleware(AccessLog, metrics=service.metrics)
    return app


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise for a query parameter that the route does not have, instead of ignoring it.

    Asynchronous, because FastAPI runs a plain function in another thread, which is slow under overload.
    """
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise unknown("parameter", name, known)


def add_routes(app: FastAPI, service: InferenceService) -> None:
    """Add the routes: each reads its parameters, runs an operation and returns a response."""
    browser_bytes = web_page.browser_models(web_page.STATIC, service.models.values())
    work: dict[str, Any] = {
        "responses": error_responses(400, 401, 408, 413, 415, 421, 422, 503),
        "openapi_extra": OPENAPI_BODY,
        "dependencies": [Depends(refuse_unknown_parameters)],
    }
    model_name = Annotated[
        str | None,
        Query(description="Default: the first model served.", json_schema_extra={"enum": list(service.models)}),
    ]
    attack_name = Annotated[str, Query(description="The attack.", json_schema_extra={"enum": list(OFFERED_ATTACKS)})]
    inverted = Annotated[bool, Query(description="Swap dark and light first: MNIST digits are light on dark.")]
    with_input = Annotated[bool, Query(description="Return the picture as the model receives it.")]
    with_pictures = Annotated[bool, Query(description="Return picture and probabilities of every step.")]
    step_count = Annotated[int | None, Query(ge=1, le=service.limits.steps, description="Default: the paper's.")]

    @app.post("/v1/predict", **work)
    async def predict(
        request: Request, model: model_name = None, pictures: with_input = False, invert: inverted = False
    ) -> responses.PredictResponse:
        """Classify a picture with the bare classifier."""
        served = service.model(model)
        trajectory = await service.run(request, served, Predict(), invert=invert)
        return await service.in_thread(lambda: responses.predict_response(served, trajectory, pictures=pictures))

    @app.post("/v1/purify", **work)
    async def purify(
        request: Request,
        model: model_name = None,
        eps_pfy: Annotated[str, Query(max_length=32, description="min-aux, or a radius in [0, 1].")] = "min-aux",
        steps: step_count = None,
        pictures: with_pictures = False,
        invert: inverted = False,
    ) -> responses.PurifyResponse:
        """Purify a picture: minimise the auxiliary loss inside a small ball. The response has every step."""
        served = service.model(model)
        operation = Purify.of(served.model, _radius(eps_pfy), steps)
        trajectory = await service.run(request, served, operation, invert=invert)
        return await service.in_thread(lambda: responses.purify_response(served, trajectory, pictures=pictures))

    @app.post("/v1/attack", **work)
    async def attack(
        request: Request,
        model: model_name = None,
        attack: attack_name = "pgd",
        eps: Annotated[float | None, Query(ge=0, le=1, description="For fgsm and pgd. Default: the paper's.")] = None,
        steps: step_count = None,
        label: Annotated[int | None, Query(ge=0, description="The true class. Default: the prediction.")] = None,
        pictures: with_pictures = False,
        invert: inverted = False,
    ) -> responses.AttackResponse:
        """Attack the bare classifier; the attack ignores the purifier. The response has every step of fgsm and pgd."""
        served = service.model(model)
        method = served.attack(attack, eps=eps, steps=steps)
        trajectory = await service.run(request, served, AttackClassifier(attack=method), invert=invert, label=label)
        return await service.in_thread(lambda: responses.attack_response(served, trajectory, method, pictures=pictures))

    @app.get("/v1/models", responses=error_responses(401, 421))
    async def models() -> dict[str, list[responses.ModelResponse]]:
        """List the served models; the first is the default."""
        served = service.models.items()
        return {"models": [responses.model_response(model, browser_bytes.get(name)) for name, model in served]}

    @app.get("/healthz", responses=error_responses(421, 503))
    async def health() -> dict[str, str | int]:
        """Report whether the service works."""
        if not all(worker.alive for worker in service.workers.values()):
            raise busy("the thread of a model has stopped")
        return {"status": "ok", "models": len(service.models)}

    @app.get("/metrics", response_class=PlainTextResponse, responses=error_responses(401, 421))
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _radius(text: str) -> float | str:
    """A radius in [0, 1], or the name of a rule that chooses one."""
    try:
        radius = float(text)
    except ValueError:
        return text
    if not 0 <= radius <= 1:
        raise InputError(f"eps_pfy is {text}, expected min-aux or a radius in [0, 1].")
    return radius
