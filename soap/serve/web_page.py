"""The web page at `/` and its static files, with fixed content types."""

import json
import mimetypes
from collections.abc import Iterable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles

from soap._files import atomic
from soap.errors import FileError
from soap.evaluation import fingerprint
from soap.serve import docs_page
from soap.serve.http_errors import RequestError
from soap.serve.served_model import ServedModel

STATIC = Path(__file__).parent / "static"

CONTENT_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json",
                 ".mjs": "text/javascript", ".onnx": "application/octet-stream", ".png": "image/png",
                 ".svg": "image/svg+xml", ".wasm": "application/wasm"}  # fmt: skip
"""Content type by suffix. Python's own table depends on the operating system, and with nosniff a browser refuses a
script of another type."""

for suffix, content_type in CONTENT_TYPES.items():
    mimetypes.add_type(content_type, suffix)


def add_pages(app: FastAPI, folder: Path) -> None:
    """Add the page in `folder` at `/`, its files at `/static/`, and the API description at `/docs`."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        if not (folder / "index.html").is_file():
            raise RequestError(404, "this service has no page; /docs describes its routes.")
        return FileResponse(folder / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page.render(app.openapi()))

    if folder.is_dir():
        app.mount("/static", StaticFiles(directory=folder))


def browser_models(folder: Path, models: Iterable[ServedModel]) -> dict[str, int]:
    """The models that the page can run in the browser, and the bytes that it loads for each.

    `tools/vendor_onnxruntime.py` writes the files and their manifest; they are used if the weights are the same.
    """
    path = folder / "vendor" / "manifest.json"
    if not path.is_file():
        return {}
    with atomic.file_errors(path):
        text = path.read_bytes()
    try:
        entries = json.loads(text)["models"]
        listed = {name: (str(entry["weights_sha256"]), int(entry["bytes"])) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{path}: not a valid manifest; run `make browser` again, or remove its folder.") from error
    return {
        served.name: listed[served.name][1]
        for served in models
        if served.name in listed and listed[served.name][0] == fingerprint(served.model)
    }
