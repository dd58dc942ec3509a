"""The application: routes behind the guard, the journal and the limits."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from soap import __version__
from soap.serve import docs_page, page, problems
from soap.serve.door import Door
from soap.serve.guard import Admission, Guard, SecurityHeaders, check_binding
from soap.serve.journal import Journal
from soap.serve.limits import Limits
from soap.serve.patience import Patience
from soap.serve.routes import router
from soap.serve.service import Service


def create_app(
    models: Sequence[str],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    device: str | torch.device = "cpu",
    host: str = "127.0.0.1",
) -> FastAPI:
    """An ASGI application that serves `models` (bundled names, or paths of .safetensors files), loaded here and now.

    token: what clients must send as `Authorization: Bearer`; required unless `host`, the address that the application
    will be bound to, is loopback. There, a request whose Host header names another machine is refused.
    """
    check_binding(host, token)
    limits = limits or Limits()
    service = Service(models, limits, device)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.open()
        tidying = asyncio.create_task(service.tidy())
        yield
        tidying.cancel()
        service.close()

    app = FastAPI(
        title="soap",
        version=__version__,
        description="Predict, attack and purify pictures. Nothing that is sent is kept.",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    problems.install(app)
    app.include_router(router(service))
    _add_docs(app)
    page.add(app, page.STATIC)
    # The last added is the outermost.
    app.add_middleware(Patience, limits=limits)
    app.add_middleware(Door, workers=service.workers)
    app.state.admission = Admission(host=host, token=token)
    app.add_middleware(Guard, admission=app.state.admission)
    app.add_middleware(Journal, metrics=service.metrics)
    app.add_middleware(SecurityHeaders)
    return app


def _add_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page.render(app.openapi()))
