"""Every error has OpenAI's shape, whoever raised it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from servers import RunningServer

from outpace.errors import ContextLengthError, ModelError, OptionError
from outpace.serving.errors import ApiError, ClientDisconnected, install_handlers


def check_shape(response: Any) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/health/", "/docs", "/redoc", "/../etc/passwd", "/v1/a%00b", "/%ff"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_paths(server: RunningServer, method: str, path: str) -> None:
    response = server.client.request(method, path)
    assert response.status_code == 404
    assert check_shape(response)["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/completions"),
        ("POST", "/v1/models"),
        ("DELETE", "/health"),
        ("OPTIONS", "/v1/chat/completions"),
        ("PUT", "/tokenize"),
        ("TRACE", "/health"),
    ],
)
def test_wrong_methods(server: RunningServer, method: str, path: str) -> None:
    response = server.client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"]
    assert method in check_shape(response)["message"]


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/v1/completions", 405)])
def test_head_has_a_status_and_no_body(server: RunningServer, path: str, status: int) -> None:
    response = server.client.head(path)
    assert (response.status_code, response.content) == (status, b"")


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (ApiError(418, "tea", type="t", param="p", code="c"), 418, "t", "c"),
        (ApiError(401, "who"), 401, "authentication_error", None),
        (ApiError(429, "full"), 429, "rate_limit_error", None),
        (ApiError(503, "ending"), 503, "server_error", None),
        (OptionError("no"), 400, "invalid_request_error", None),
        (ModelError("weights"), 500, "server_error", "model_error"),
        (ContextLengthError("long"), 400, "invalid_request_error", "context_length_exceeded"),
        (ClientDisconnected(), 499, None, None),
    ],
)
async def test_errors_of_endpoints(
    error: Exception, status: int, kind: str | None, code: str | None
) -> None:
    app = FastAPI()
    install_handlers(app)

    @app.get("/x")
    async def endpoint() -> None:
        raise error

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], "query_string": b""}
    await app(scope, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == status
    if kind is not None:
        response = SimpleNamespace(json=lambda: json.loads(sent[1]["body"]))
        found = check_shape(response)
        assert (found["type"], found["code"]) == (kind, code)


async def test_an_endpoint_with_parameters_of_its_own_has_the_same_shape() -> None:
    app = FastAPI()
    install_handlers(app)

    @app.get("/x")
    async def endpoint(count: int) -> None:
        pytest.fail(f"called with {count}")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    query = {"query_string": b"count=many"}
    scope = {"type": "http", "method": "GET", "path": "/x", "headers": []} | query
    await app(scope, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 400
    assert b'"param":"count"' in sent[1]["body"]
