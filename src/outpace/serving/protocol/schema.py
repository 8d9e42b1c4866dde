"""What /openapi.json says of requests, whose bodies the endpoints read themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_REASONS = {
    400: "the request cannot be honoured as given",
    401: "a key is missing or wrong",
    403: "the Host header names another host",
    404: "there is no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not called application/json",
    429: "the queue is full",
    500: "the server failed",
    503: "the server is shutting down, or too many requests are under way",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": reason, "content": {"application/json": {"schema": _ERROR}}}
    for status, reason in _REASONS.items()
}
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": 'one object, or with "stream": true a series of them as events',
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """The part of an operation (`openapi_extra`) that describes its body."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    """The schema without references: they would look for their targets in the whole document."""
    if isinstance(part, list):
        return [_inlined(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(definitions[part["$ref"].rpartition("/")[2]], definitions)
    # A discriminator maps to references as well, and adds nothing to the constants it rests on.
    return {key: _inlined(one, definitions) for key, one in part.items() if key != "discriminator"}
