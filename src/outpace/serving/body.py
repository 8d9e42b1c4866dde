"""A request's body as strict JSON: what two readers could take for different things is refused."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, NoReturn

from fastapi import Request

from outpace.serving.errors import ApiError
from outpace.strict_json import without_duplicates

MAX_DEPTH = 64
"""Levels of lists and objects in a body: more than any schema needs, few enough to recurse over."""


async def read_json(request: Request) -> dict[str, Any]:
    """The object that a request's body holds. Its size and type were checked before (guard.py).

    Raises ApiError 400 for what is not JSON in UTF-8, or no object; for a key given twice, NaN,
    Infinity, numbers out of range, lone surrogates, and nesting deeper than MAX_DEPTH.
    """
    data = await request.body()
    # A large body takes long enough to hold up other requests.
    value = await asyncio.to_thread(parse, data) if len(data) > 16384 else parse(data)
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, got {_kind(value)}")
    return value


def parse(data: bytes) -> Any:
    """The value of a JSON text; see `read_json`."""
    if not data:
        raise ApiError(400, "the body is empty; it must be a JSON object")
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=without_duplicates,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        # The standard library advises a remedy after a semicolon that clients do not have.
        reason = str(error).partition(";")[0]
        raise ApiError(400, f"the body is not valid JSON: {reason}") from error
    _check(value)
    return value


def _check(value: Any) -> None:
    """Raise ApiError for texts that no tokenizer takes and for nesting that is too deep."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise _too_deep()
        following: list[Any] = []
        for one in level:
            if isinstance(one, str):
                _check_text(one)
            elif isinstance(one, list):
                following.extend(one)
            elif isinstance(one, dict):
                following.extend(one)
                following.extend(one.values())
        level, depth = following, depth + 1


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ApiError(
            400,
            f"a text holds a lone surrogate (\\u{ord(text[error.start]):04x}), half of a character "
            "that UTF-16 writes as two; send the character whole",
        ) from error


def _too_deep() -> ApiError:
    return ApiError(400, f"the body is nested too deeply; {MAX_DEPTH} levels are allowed")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text:.40} is out of range")
    return value


def _kind(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
