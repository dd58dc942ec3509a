"""What goes wrong, as clients see it: a status, and {"error": {"kind", "message"}}."""

from collections.abc import Awaitable, Callable, Mapping
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
"""One kind for each status that is not a success."""

RETRY_AFTER = "1"
"""Seconds: a queue is worked off in less."""


class ErrorDetail(BaseModel):
    """kind: a word for machines. message: what was got, what is wanted, what to do next."""

    kind: str
    message: str


class ErrorAnswer(BaseModel):
    """What every failure looks like."""

    error: ErrorDetail


class RequestError(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def response(self) -> JSONResponse:
        """The refusal; a connection whose body was not read, or cannot be trusted, is closed."""
        headers: dict[str, str] = {}
        if self.status in (400, 408, 413):
            headers["Connection"] = "close"
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == 503:
            headers["Retry-After"] = RETRY_AFTER
        return _response(self.status, self.message, headers)


def busy(what: str) -> RequestError:
    """The service is asked for more than it can do now."""
    return RequestError(503, f"{what}; try again in {RETRY_AFTER} s.")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The failures of a route, for the OpenAPI schema."""
    return {status: {"model": ErrorAnswer, "description": HTTPStatus(status).phrase} for status in statuses}


def install(app: FastAPI) -> None:
    """Answer every expected exception in the one format."""
    handlers: dict[type[Exception], Callable[[Any], JSONResponse]] = {
        RequestError: lambda problem: problem.response(),
        SoapError: lambda error: _response(422, str(error)),
        RequestValidationError: lambda error: _response(422, _first(error)),
        HTTPException: _of_starlette,
    }
    for kind, make in handlers.items():
        app.add_exception_handler(kind, _handler(make))


def _handler(make: Callable[[Any], JSONResponse]) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        return make(error)

    return answer


def _of_starlette(error: HTTPException) -> JSONResponse:
    words = {404: "there is no such route; see /docs.", 405: "the route does not take this method; see /docs."}
    return _response(error.status_code, words.get(error.status_code, str(error.detail)), error.headers)


def _first(error: RequestValidationError) -> str:
    """The first thing that is wrong with the parameters; what was sent is not repeated."""
    found = error.errors()[0]
    return f"{'.'.join(map(str, found['loc'][1:])) or 'request'}: {found['msg']}; see /docs."


def _response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    error = ErrorDetail(kind=KINDS.get(status, "request"), message=message)
    return JSONResponse(ErrorAnswer(error=error).model_dump(), status, dict(headers or {}))
