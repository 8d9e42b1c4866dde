"""Errors as responses: every one has OpenAI's body, whoever raised it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from outpace.errors import ContextLengthError, ModelError, OutpaceError

logger = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An answer that is an error.

    status: of the response. type: OpenAI's kind of error (default: by status). param: the field of
    the request that is at fault. code: a short name for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _type_of(status)
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """What the response holds, also as the data of an event in a stream."""
        about = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": about}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


class ClientDisconnected(Exception):  # noqa: N818 (nothing is wrong: nobody waits for an answer)
    """The client has gone; whatever is answered goes nowhere."""


def from_outpace_error(error: OutpaceError) -> ApiError:
    """An error that a request caused, with its own message; or the model did, for any request: what
    is wrong with its weights is not the client's to change."""
    if isinstance(error, ModelError):
        return ApiError(500, str(error), code="model_error")
    code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
    return ApiError(400, str(error), code=code)


def server_error(message: str = "the server failed to answer; the fault is its own") -> ApiError:
    """A fault of ours. What failed stands in the log, without texts of requests."""
    return ApiError(500, message, code="internal_error")


NUM_FRAMES = 12


def log_fault(error: BaseException) -> None:
    """Log where an error came from. Its message is left out: it may quote a prompt.

    A step that fails ends several requests with one error, whose trace grows by each that raises
    it: only the end, where it came from, is the same for all.
    """
    where = "".join(traceback.format_tb(error.__traceback__, limit=-NUM_FRAMES))
    logger.error("a request failed with %s\n%s", type(error).__name__, where)


def install_handlers(app: FastAPI) -> None:
    """Make every error that reaches the app a response in OpenAI's shape."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(OutpaceError, _on_outpace_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(ClientDisconnected, _on_disconnect)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _on_outpace_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OutpaceError)
    return from_outpace_error(error).response()


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """The router's own: a path that does not exist, a method that it does not have."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    messages = {
        404: f"there is nothing at {path!r:.200}; the API is below /v1 (a client's base URL)",
        405: f"{request.method} is not possible at {path!r:.200}",
    }
    message = messages.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return ApiError(400, f"{where}: {first['msg']}", param=where or None).response()


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


def _type_of(status: int) -> str:
    if status in _TYPES:
        return _TYPES[status]
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
