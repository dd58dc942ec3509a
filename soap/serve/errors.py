"""Error responses: their schemas, and how they are made from an exception."""

import traceback
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from soap.data.pictures import PictureTooLargeError, UnsupportedPictureError
from soap.errors import SoapError

ERROR_KINDS = {400: "request", 401: "token", 404: "route", 405: "method", 408: "slow", 413: "size", 415: "format",
               421: "host", 422: "input", 499: "gone", 503: "busy"}  # fmt: skip
"""Error kind by status."""

ERROR_STATUSES: dict[type[Exception], int] = {UnsupportedPictureError: 415, PictureTooLargeError: 413}
"""Status by exception; 422 for others."""

ERROR_HEADERS = {
    400: {"Connection": "close"},  # the body was not read to its end, or its length is not known
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    413: {"Connection": "close"},
    503: {"Retry-After": "1"},
}
"""Response headers by status. A full queue is empty again in less than a second."""


class ErrorDetail(BaseModel):
    """kind: a fixed word for programs. message: what was given, what is expected, what to do."""

    kind: str
    message: str


class ErrorResponse(BaseModel):
    """Body of every error response, except under /v2."""

    error: ErrorDetail


class ProtocolErrorResponse(BaseModel):
    """Body of every error response under /v2, as the Open Inference Protocol has it."""

    error: str


def busy(reason: str) -> HTTPException:
    """Error 503: the service is overloaded or failed; the client may retry."""
    return HTTPException(503, f"{reason}; try again in {ERROR_HEADERS[503]['Retry-After']} s.")


def place_of(error: Exception) -> str:
    """File and line that raised an exception; an exception of another process brings its place along."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return str(getattr(error, "place", f"{Path(frame.filename).name}:{frame.lineno}"))


def error_response(error: Exception, path: str = "") -> JSONResponse:
    """The response to an exception of a request to `path`; status 422 if the request has a wrong value."""
    status, message, headers = ERROR_STATUSES.get(type(error), 422), str(error), {}
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, error.detail, dict(error.headers or {})
        if not message.endswith("."):  # starlette's message for an unknown route or method
            message += "; /docs lists the routes and their methods."
    elif isinstance(error, RequestValidationError):  # its values are not repeated: they are the client's input
        parameter = error.errors()[0]["loc"][1]
        reasons = [one["msg"] for one in error.errors() if one["loc"][1] == parameter]  # one for each accepted type
        message = f"{parameter}: {', or: '.join(reasons)}; see /docs."
    detail = {"kind": ERROR_KINDS.get(status, "request"), "message": message}
    content = {"error": message if path.startswith("/v2") else detail}
    return JSONResponse(content, status, {**ERROR_HEADERS.get(status, {}), **headers})


def error_schemas(*statuses: int, model: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for its OpenAPI schema."""
    return {status: {"model": model, "description": HTTPStatus(status).phrase} for status in statuses}


async def _handle(request: Request, error: Exception) -> JSONResponse:
    return error_response(error, request.scope["path"])


HANDLERS: dict[int | type[Exception], Callable[..., Any]] = dict.fromkeys(
    (HTTPException, RequestValidationError, SoapError), _handle
)
"""Exception handlers of the application, for every expected exception of a route."""
