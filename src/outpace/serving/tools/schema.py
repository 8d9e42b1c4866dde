"""JSON schemas of calls: what a constrained answer must look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY = {"type": "object"}
# What stands here is a value, not a schema, whatever it looks like.
_VALUE_KEYS = frozenset({"const", "default", "enum", "examples"})


def arguments_schema(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments; of one without parameters, of an empty object."""
    schema: dict[str, Any] = function.get("parameters", _NO_PARAMETERS)
    return schema


def calls_schema(
    functions: Sequence[dict[str, Any]], arguments_key: str, only_one: bool
) -> dict[str, Any]:
    """The schema of a non-empty list of {"name": ..., arguments_key: ...}.

    only_one: the list holds exactly one call.
    """
    items = {"anyOf": [_call_schema(one["name"], arguments_key) for one in functions]}
    schema = {"$defs": _definitions(functions), "type": "array", "items": items, "minItems": 1}
    return schema | {"maxItems": 1} if only_one else schema


def one_call_schema(functions: Sequence[dict[str, Any]], arguments_key: str) -> dict[str, Any]:
    """The schema of one {"name": ..., arguments_key: ...}; the arguments of functions that are not
    strict may be any object."""
    calls = [_call_schema(one["name"], arguments_key) for one in functions]
    bound = [one if one.get("strict") else {**one, "parameters": _ANY} for one in functions]
    return {"$defs": _definitions(bound), "anyOf": calls}


def _definitions(functions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {one["name"]: _moved(arguments_schema(one), one["name"]) for one in functions}


def _call_schema(name: str, arguments_key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, arguments_key: {"$ref": f"#/$defs/{name}"}},
        "required": ["name", arguments_key],
        "additionalProperties": False,
    }


def _moved(schema: Any, name: str) -> Any:
    """A function's schema with its references to itself and its parts following it to where it
    stands now."""
    if isinstance(schema, list):
        return [_moved(one, name) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = f"#/$defs/{name}{value[1:]}"
        else:
            moved[key] = value if key in _VALUE_KEYS else _moved(value, name)
    return moved
