"""The web page at `/` with its static files, and the API description at `/docs`."""

import json
import mimetypes
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ValidationError

from soap._files import atomic
from soap.errors import FileError
from soap.evaluation import fingerprint
from soap.serve.http_errors import RequestError
from soap.serve.operations import ServedModel

STATIC = Path(__file__).parent / "static"

CONTENT_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json",
                 ".mjs": "text/javascript", ".onnx": "application/octet-stream", ".png": "image/png",
                 ".svg": "image/svg+xml", ".wasm": "application/wasm"}  # fmt: skip
"""Content type by suffix. Python's own table depends on the operating system, and with nosniff a browser refuses a
script of another type."""

DOCS_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport"
content="width=device-width"><meta name="color-scheme" content="light dark"><title>{title}</title></head><body><main>
<h1>{title}</h1><p>{description} The whole schema: <a href="/openapi.json">openapi.json</a>.</p>{routes}</main></body>
</html>"""
"""FastAPI's own page of the schema loads scripts from other sites."""

for suffix, content_type in CONTENT_TYPES.items():
    mimetypes.add_type(content_type, suffix)


class BrowserModel(BaseModel):
    """A model whose files are present for the browser, and the bytes that the page loads for it."""

    weights_sha256: str
    bytes: int


class BrowserManifest(BaseModel):
    """manifest.json of `tools/vendor_onnxruntime.py`."""

    models: dict[str, BrowserModel]


def add_pages(app: FastAPI, folder: Path) -> None:
    """Add the page in `folder` at `/`, its files at `/static/`, and the API description at `/docs`."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        if not (folder / "index.html").is_file():
            raise RequestError(404, "this service has no page; /docs describes its routes.")
        return FileResponse(folder / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    if folder.is_dir():
        app.mount("/static", StaticFiles(directory=folder))


def browser_models(folder: Path, models: Iterable[ServedModel]) -> dict[str, int]:
    """The models that the page can run in the browser with equal weights, and the bytes that it loads for each."""
    path = folder / "vendor" / "manifest.json"
    if not path.is_file():
        return {}
    with atomic.file_errors(path):
        text = path.read_bytes()
    try:
        listed = BrowserManifest.model_validate_json(text).models
    except ValidationError as error:
        raise FileError(f"{path}: not a valid manifest; run `make browser` again, or remove its folder.") from error
    return {
        served.name: listed[served.name].bytes
        for served in models
        if served.name in listed and listed[served.name].weights_sha256 == fingerprint(served.model)
    }


def docs_page(schema: dict[str, Any]) -> str:
    """The OpenAPI schema as a plain page: every route with its parameters, body and responses."""
    routes = [
        f"<section><h2><code>{escape(method.upper())} {escape(path)}</code></h2>{_route(route)}</section>"
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return DOCS_PAGE.format(title=title, description=escape(schema["info"]["description"]), routes="".join(routes))


def _route(route: dict[str, Any]) -> str:
    """Description, query parameters, content types of the body, and statuses of one route."""
    body = route.get("requestBody", {"content": {}})
    items = [(p["name"], f"{p.get('description', '')} {_type(p['schema'])}") for p in route.get("parameters", ())]
    items += [(f"body: {kind}", body["description"]) for kind in body["content"]]
    items += [(f"status {status}", response["description"]) for status, response in route["responses"].items()]
    rows = "".join(f"<dt><code>{escape(name)}</code></dt><dd>{escape(text)}</dd>" for name, text in items)
    return f"<p>{escape(route['description'])}</p><dl>{rows}</dl>"


def _type(schema: dict[str, Any]) -> str:
    """JSON schema of a parameter without its title and the alternative null."""
    choices = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    shown = {**choices[0], **{key: schema[key] for key in ("enum", "default") if key in schema}}
    return json.dumps({key: value for key, value in shown.items() if key != "title"})
