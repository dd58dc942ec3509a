"""Error responses: a status and {"error": {"kind", "message"}}."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from soap.errors import SoapError

KINDS = {400: "request", 401: "token", 404: "route", 405: "method", 408: "slow", 413: "size", 415: "format",
         421: "host", 422: "input", 499: "gone", 503: "busy"}  # fmt: skip
"""Error kind by status."""

HEADERS = {
    400: {"Connection": "close"},  # the body was not read to its end, or its length is not known
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    413: {"Connection": "close"},
    503: {"Retry-After": "1"},
}
"""Response headers by status. A full queue is empty again in less than a second."""

ROUTER_MESSAGES = {404: "this route does not exist; see /docs.", 405: "the route does not take this method; see /docs."}


class ErrorDetail(BaseModel):
    """kind: a fixed word for programs. message: what was given, what is expected, what to do."""

    kind: str
    message: str


class ErrorResponse(BaseModel):
    """Body of every error response."""

    error: ErrorDetail


class RequestError(Exception):
    """A refused request, with its HTTP status and extra response headers."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {**HEADERS.get(status, {}), **(headers or {})}

    def response(self) -> JSONResponse:
        """The error response."""
        error = {"kind": KINDS.get(self.status, "request"), "message": str(self)}
        return JSONResponse({"error": error}, self.status, self.headers)


def busy(reason: str) -> RequestError:
    """Error 503: the service is overloaded or failed; the client may retry."""
    return RequestError(503, f"{reason}; try again in {HEADERS[503]['Retry-After']} s.")


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for its OpenAPI schema."""
    return {status: {"model": ErrorResponse, "description": HTTPStatus(status).phrase} for status in statuses}


def install_handlers(app: FastAPI) -> None:
    """Return every expected exception of a route as an error response."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        return _request_error(error).response()

    for kind in (RequestError, SoapError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)


def _request_error(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RequestValidationError):  # its values are not repeated: they are the client's input
        first = error.errors()[0]
        return RequestError(422, f"{'.'.join(map(str, first['loc'][1:])) or 'request'}: {first['msg']}; see /docs.")
    if isinstance(error, HTTPException):
        message = ROUTER_MESSAGES.get(error.status_code, str(error.detail))
        return RequestError(error.status_code, message, error.headers)
    return RequestError(422, str(error))
