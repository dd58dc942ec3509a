"""The page at `/` and the files it loads from `/static/`, with types and caching that depend on no machine."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

from soap._files import atomic
from soap.errors import FileError
from soap.evaluation import fingerprint
from soap.serve.problems import RequestError
from soap.serve.subject import Subject

STATIC = Path(__file__).parent / "static"

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".wasm": "application/wasm",
    ".onnx": "application/octet-stream",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""Python asks the operating system what .js is; a browser that is told nosniff takes no script of another type."""

CHECKED = {"Cache-Control": "no-cache"}
"""A browser may keep a file, but asks each time whether it is still the one of this ETag."""


class TypedFiles(StaticFiles):
    """Static files by `TYPES`, asked for again by their ETag."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, or that it has not changed."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(CHECKED)
        kind = TYPES.get(Path(full_path).suffix)
        if kind is not None and "content-type" in response.headers:
            response.headers["content-type"] = kind
        return response


def add(app: FastAPI, folder: Path) -> None:
    """Serve the page in `folder`, or say where the routes are described if none is there."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        if not (folder / "index.html").is_file():
            raise RequestError(404, "this service has no page; its routes are described at /docs.")
        return FileResponse(folder / "index.html", media_type=TYPES[".html"], headers=CHECKED)

    if folder.is_dir():
        app.mount("/static", TypedFiles(directory=folder))


def in_browser(folder: Path, subjects: Iterable[Subject]) -> dict[str, int]:
    """The models that the page in `folder` can run by itself, and how many bytes it loads for each.

    `tools/vendor_onnxruntime.py` puts the files there; they count for a served model of the same weights alone.
    """
    path = folder / "vendor" / "manifest.json"
    if not path.is_file():
        return {}
    with atomic.file_errors(path):
        text = path.read_bytes()
    try:
        models = json.loads(text)["models"]
        there = {name: (str(it["weights_sha256"]), int(it["bytes"])) for name, it in models.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{path}: not a manifest; write it again with `make browser`, or remove its folder.") from error
    known = [subject for subject in subjects if subject.name in there]
    return {it.name: there[it.name][1] for it in known if there[it.name][0] == fingerprint(it.model)}
