"""The ASGI application: routes and pages behind admission and the access log."""

import json
import mimetypes
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import jinja2
import torch
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, create_model

from soap import __version__
from soap._files import atomic
from soap.auxiliary import JointModel
from soap.errors import FileError, unknown
from soap.evaluation import fingerprint
from soap.recipes.own_network import Factory
from soap.recipes.trained_model import TrainedModel
from soap.serve import Limits
from soap.serve.admission import HEALTH_PATHS, PUBLIC_PATHS, Admission, check_binding
from soap.serve.errors import HANDLERS, error_schemas
from soap.serve.inference import DecodedRequest, InferenceService
from soap.serve.monitoring import AccessLog
from soap.serve.open_inference import REQUEST_COMPONENTS, add_open_inference
from soap.serve.picture_api import (
    AttackQuery,
    AttackResponse,
    ModelResponse,
    PredictQuery,
    PredictResponse,
    PurifyQuery,
    PurifyResponse,
)
from soap.serve.request_images import PICTURE_TYPES, JsonImage, decode_image, image_schema
from soap.serve.trajectories import Trajectory

if TYPE_CHECKING:
    from soap.serve.model_process import ModelProcess

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

IMAGE_BODY, IMAGE_COMPONENTS = image_schema(JsonImage, *PICTURE_TYPES)


def create_app(
    models: Sequence[str | JointModel],
    *,
    module: Factory | None = None,
    token: str | None = None,
    limits: Limits | None = None,
    device: str | torch.device = "cpu",
    host: str = "127.0.0.1",
    allowed_hosts: Collection[str] = (),
    model_process: "ModelProcess | None" = None,
) -> FastAPI:
    """Load `models` (bundled names, or paths of .safetensors files) and return the application that serves them.

    A `JointModel` in `models` is served as it is, on its own device: in evaluation mode and with frozen parameters.
    module: as in `soap.load`, for files with weights of your own network.
    token: clients must send it as `Authorization: Bearer`. host: the address that the server listens on. A token is
    required unless `host` is loopback; on loopback, requests with the Host header of another machine are refused,
    unless it is one of `allowed_hosts`. model_process: with the same models, runs their batches outside this process.
    """
    check_binding(host, token)
    limits = limits or Limits()
    service = InferenceService(models, limits, device, module, model_process)
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
    add_pages(app, service)
    complete_schema(app, needs_token=token is not None)
    # The middleware that is added last runs first.
    app.add_middleware(
        Admission, host=host, token=token, limits=limits, workers=service.workers, allowed_hosts=allowed_hosts
    )
    app.add_middleware(AccessLog, metrics=service.metrics)
    return app


ROUTES: tuple[tuple[type[PredictQuery], type[BaseModel]], ...] = (
    (PredictQuery, PredictResponse), (PurifyQuery, PurifyResponse), (AttackQuery, AttackResponse),
)  # fmt: skip


def add_routes(app: FastAPI, service: InferenceService) -> None:
    """Add the routes that run an operation on a picture, and the list of models."""
    names = tuple(service.models)
    model_name: Any = (Literal[names], Field(names[0], description="The model."))
    for kind, response in ROUTES:
        app.post(
            f"/v1/{kind.__name__.removesuffix('Query').lower()}",
            description=kind.__doc__,
            response_model=response,
            responses=error_schemas(400, 401, 408, 413, 415, 421, 422, 503),
            openapi_extra=IMAGE_BODY,
        )(picture_route(service, create_model(kind.__name__, __base__=kind, model=model_name)))
    browser_bytes = browser_models(service.models)

    @app.get("/v1/models", responses=error_schemas(401, 421))
    async def models() -> dict[str, list[ModelResponse]]:
        """List the served models; the first is the default."""
        served = service.models.items()
        return {"models": [ModelResponse.of(model, browser_bytes.get(name)) for name, model in served]}


def picture_route(service: InferenceService, query_type: type[PredictQuery]) -> Callable[..., Awaitable[Response]]:
    """A route that runs the operation of a query on the image that is the body of an admitted request.

    Asynchronous, because FastAPI runs a plain function in another thread, which is slow under overload.
    """

    async def run(request: Request, given: Annotated[query_type, Query()]) -> Response:  # type: ignore[valid-type]
        query = cast(PredictQuery, given)
        for name in request.query_params:
            if name not in query_type.model_fields:
                raise unknown("parameter", name, query_type.model_fields)
        served, kind = service.models[query.model], request.headers.get("content-type", "")
        operation = query.operation(served)

        def respond(found: list[Trajectory]) -> Response:
            content = query.respond(served, found[0]).model_dump_json(by_alias=True)
            return Response(content, media_type="application/json")

        def decode(body: bytes) -> DecodedRequest:
            x = decode_image(body, kind, served.model.input_shape, service.limits, invert=query.invert)
            return DecodedRequest(operation, [x], getattr(query, "label", None), respond)

        return await service.run(request, query.model, decode)

    return run


def add_pages(app: FastAPI, service: InferenceService) -> None:
    """Add health, metrics, the page at `/`, its files at `/static/`, and the API description at `/docs`."""

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

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(DOCS_PAGE.render(schema=app.openapi()))

    app.mount("/static", StaticFiles(directory=STATIC))


def complete_schema(app: FastAPI, *, needs_token: bool) -> None:
    """Add to the OpenAPI schema what FastAPI cannot know: the token, and the schemas of a body that a job holds."""
    schema = app.openapi()
    components = schema["components"]
    components["schemas"] |= REQUEST_COMPONENTS | IMAGE_COMPONENTS
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
        listed = {
            name: (each["weights_sha256"], int(each["bytes"])) for name, each in json.loads(text)["models"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{path}: not a valid manifest; run `make browser` again, or remove its folder.") from error
    present = {name: listed[name] for name in models if name in listed}
    return {name: size for name, (sha256, size) in present.items() if sha256 == fingerprint(models[name].model)}
