"""The ASGI application: routes and pages behind admission and the access log."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI

from soap import __version__
from soap.serve import http_errors, web_page
from soap.serve.admission import Admission, check_binding
from soap.serve.inference import InferenceService
from soap.serve.limits import Limits
from soap.serve.monitoring import AccessLog
from soap.serve.routes import create_router


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
    http_errors.install_handlers(app)
    app.include_router(create_router(service))
    web_page.add_pages(app, web_page.STATIC)
    # The middleware that is added last runs first.
    app.add_middleware(Admission, host=host, token=token, limits=limits, workers=service.workers)
    app.add_middleware(AccessLog, metrics=service.metrics)
    return app
