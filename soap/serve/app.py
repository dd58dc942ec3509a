"""The ASGI application: routes and pages behind admission and the access log."""

import mimetypes
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2
import torch
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException

from soap import __version__
from soap._files import atomic
from soap.auxiliary import JointModel
from soap.errors import FileError, unknown
from soap.evaluation import fingerprint
from soap.recipes.own_network import Factory
from soap.recipes.trained_model import TrainedModel
from soap.serve import Limits, responses
from soap.serve.admission import HEALTH_PATHS, PUBLIC_PATHS, Admission, check_binding
from soap.serve.inference import InferenceService
from soap.serve.monitoring import AccessLog
from soap.serve.open_inference import REQUEST_COMPONENTS, add_open_inference
from soap.serve.request_images import OPENAPI_BODY
from soap.serve.responses import HANDLERS, OFFERED_ATTACKS, error_schemas
from soap.serve.trajectories import AttackClassifier, Predict, Purify

STATIC = Path(__file__).parent / "static"

DOCS_PAGE = jinja2.Environment(loader=jinja2.PackageLoader("soap.serve"), autoescape=True).get_template("docs.html")
"""FastAPI's own page of the schema loads scripts from other sites."""

CONTENT_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json",
                 ".mjs": "text/javascript", ".onnx": "application/octet-stream", ".png": "image/png",
                 ".svg": "image/svg+xml", ".wasm": "application/wasm"}  # fmt: skip
"""Content type by suffix. Python's own table depends on the operating system, and with nosniff a browser refuses a
script of another type."""

for suffix, content_type in CONTENT_TYPES.items():
    mimetypes.add_type(content_type, suffix)

Radius = Annotated[float, Field(ge=0, le=1)]


class BrowserModel(BaseModel):
    """A model whose files are present for the browser, and the bytes that the page loads for it."""

    weights_sha256: str
    bytes: int


class BrowserManifest(BaseModel):
    """manifest.json of `tools/vendor_onnxruntime.py`."""

    models: dict[str, BrowserModel]


def create_app(
    models: Sequence[str | JointModel],
    *,
    module: Factory | None = None,
    token: str | None = None,
    limits: Limits | None = None,
    device: str | torch.device = "cpu",
    host: str = "127.0.0.1",
    allowed_hosts: Collection[str] = (),
) -> FastAPI:
    """Load `models` (bundled names, or paths of .safetensors files) and return the application that serves them.

    A `JointModel` in `models` is served as it is, on its own device: in evaluation mode and with frozen parameters.
    module: as in `soap.load`, for files with weights of your own network.
    token: clients must send it as `Authorization: Bearer`. host: the address that the server listens on. A token is
    required unless `host` is loopback; on loopback, requests with the Host header of another machine are refused,
    unless it is one of `allowed_hosts`.
    """
    check_binding(host, token)
    limits = limits or Limits()
    service = InferenceService(models, limits, device, module)
    app = FastAPI(
        title="soap",
        version=__version__,
        description="Predict, attack and purify pictures. The service does not store what clients send.",
        docs_url=None,  # FastAPI's own pages load scripts from other sites
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # a span would hold the queries of clients
        exception_handlers=HANDLERS,
        lifespan=service.lifespan,
    )
    app.state.service = service
    add_routes(app, service)
    add_open_inference(app, service)
    add_pages(app)
    complete_schema(app, needs_token=token is not None)
    # The middleware that is added last runs first.
    app.add_middleware(
        Admission, host=host, token=token, limits=limits, workers=service.workers, allowed_hosts=allowed_hosts
    )
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
    """Add the routes: each reads its parameters and runs an operation."""
    browser_bytes = browser_models(service.models)
    work: dict[str, Any] = {
        "responses": error_schemas(400, 401, 408, 413, 415, 421, 422, 503),
        "openapi_extra": OPENAPI_BODY,
        "dependencies": [Depends(refuse_unknown_parameters)],
    }
    names = tuple(service.models)
    model_name = Annotated[Literal[names], Query(description="The model.")]  # type: ignore[valid-type]
    attack_name = Annotated[Literal[OFFERED_ATTACKS], Query(description="The attack.")]  # type: ignore[valid-type]
    inverted = Annotated[bool, Query(description="Swap dark and light first: MNIST digits are light on dark.")]
    with_input = Annotated[bool, Query(description="Return the picture as the model receives it.")]
    with_pictures = Annotated[bool, Query(description="Return picture and probabilities of every step.")]
    radius_choice = Annotated[Radius | Literal["min-aux"], Query(description="min-aux, or a radius in [0, 1].")]
    step_count = Annotated[int | None, Query(ge=1, le=service.limits.steps, description="Default: the paper's.")]

    @app.post("/v1/predict", response_model=responses.PredictResponse, **work)
    async def predict(
        request: Request, model: model_name = names[0], pictures: with_input = False, invert: inverted = False
    ) -> Response:
        """Classify a picture with the bare classifier."""
        respond = partial(responses.predict_response, pictures=pictures)
        return await service.run_image(request, model, Predict(), respond, invert=invert)

    @app.post("/v1/purify", response_model=responses.PurifyResponse, **work)
    async def purify(
        request: Request,
        model: model_name = names[0],
        eps_pfy: radius_choice = "min-aux",
        steps: step_count = None,
        pictures: with_pictures = False,
        invert: inverted = False,
    ) -> Response:
        """Purify a picture: minimise the auxiliary loss inside a small ball. The response has every step."""
        operation = Purify.of(service.models[model].model, eps_pfy, steps)
        respond = partial(responses.purify_response, pictures=pictures)
        return await service.run_image(request, model, operation, respond, invert=invert)

    @app.post("/v1/attack", response_model=responses.AttackResponse, **work)
    async def attack(
        request: Request,
        model: model_name = names[0],
        attack: attack_name = "pgd",
        eps: Annotated[float | None, Query(ge=0, le=1, description="For fgsm and pgd. Default: the paper's.")] = None,
        steps: step_count = None,
        label: Annotated[int | None, Query(ge=0, description="The true class. Default: the prediction.")] = None,
        pictures: with_pictures = False,
        invert: inverted = False,
    ) -> Response:
        """Attack the bare classifier; the attack ignores the purifier. The response has every step of fgsm and pgd."""
        given = {key: value for key, value in (("eps", eps), ("steps", steps)) if value is not None}
        method = service.models[model].attack(attack, settings=given)
        respond = partial(responses.attack_response, attack=method, pictures=pictures)
        operation = AttackClassifier(attack=method)
        return await service.run_image(request, model, operation, respond, invert=invert, label=label)

    @app.get("/v1/models", responses=error_schemas(401, 421))
    async def models() -> dict[str, list[responses.ModelResponse]]:
        """List the served models; the first is the default."""
        served = service.models.items()
        return {"models": [responses.model_response(model, browser_bytes.get(name)) for name, model in served]}

    async def health() -> dict[str, str | int]:
        """Report whether the service works."""
        service.check_health()
        return {"status": "ok", "models": len(service.models)}

    for path in HEALTH_PATHS:
        app.get(path, responses=error_schemas(421, 503))(health)

    @app.get("/metrics", response_class=PlainTextResponse, responses=error_schemas(401, 421))
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def add_pages(app: FastAPI) -> None:
    """Add the page at `/`, its files at `/static/`, and the API description at `/docs`."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        if not (STATIC / "index.html").is_file():
            raise HTTPException(404, "this service has no page; /docs describes its routes.")
        return FileResponse(STATIC / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(DOCS_PAGE.render(schema=app.openapi()))

    app.mount("/static", StaticFiles(directory=STATIC))


def complete_schema(app: FastAPI, *, needs_token: bool) -> None:
    """Add to the OpenAPI schema what FastAPI cannot know: the token, and the schemas of a body that a job holds."""
    schema = app.openapi()
    components = schema["components"]
    components["schemas"] |= REQUEST_COMPONENTS
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    if needs_token:
        for path, methods in schema["paths"].items():
            for route in methods.values():
                route["security"] = [] if path in PUBLIC_PATHS else [{"token": []}]


def browser_models(models: Mapping[str, TrainedModel]) -> dict[str, int]:
    """The models that the page can run in the browser with equal weights, and the bytes that it loads for each."""
    path = STATIC / "vendor" / "manifest.json"
    if not path.is_file():
        return {}
    with atomic.file_errors(path):
        text = path.read_bytes()
    try:
        listed = BrowserManifest.model_validate_json(text).models
    except ValidationError as error:
        raise FileError(f"{path}: not a valid manifest; run `make browser` again, or remove its folder.") from error
    return {
        name: listed[name].bytes
        for name, served in models.items()
        if name in listed and listed[name].weights_sha256 == fingerprint(served.model)
    }
