"""Conversations as callers write them, checked and in the shape that chat templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from outpace.errors import OptionError

# A JSON text this deep could exhaust the interpreter's stack wherever it is written or read.
MAX_DEPTH = 64
MAX_TOOLS = 128
_TEXT_KEYS = ("role", "name", "tool_call_id", "reasoning_content")
_MESSAGE_KEYS = (*_TEXT_KEYS, "content", "tool_calls")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as plain dictionaries, without what is null.

    A message has a `role`, a `content` (a text, or a list of {"type": "text", "text": ...} which
    are joined), and may have `name`, `tool_call_id` and `reasoning_content`. One of the assistant
    may have `tool_calls` in OpenAI's shape, and then no content; their arguments, a JSON text, come
    back as an object where the text is one, as templates expect (transformers' convention).

    Raises OptionError that names the place of whatever is malformed or unknown.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise OptionError(
            "messages must be a non-empty list of {'role': ..., 'content': ...}, "
            f"got {_shown(messages)}"
        )
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def checked_tools(tools: Any) -> list[dict[str, Any]]:
    """OpenAI's list of {"type": "function", "function": {...}}, checked, as plain dictionaries.

    A function has a `name` and may have a `description`, `parameters` (a JSON schema of an object)
    and `strict`. Raises OptionError that names the place of whatever is malformed or unknown.
    """
    if not isinstance(tools, list | tuple) or not tools:
        raise OptionError(
            'tools must be a non-empty list of {"type": "function", "function": {...}}, got '
            f"{_shown(tools)}; leave it out where there are none"
        )
    if len(tools) > MAX_TOOLS:
        raise OptionError(f"tools must hold at most {MAX_TOOLS} functions, got {len(tools)}")
    checked = [_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    names: set[str] = set()
    for index, tool in enumerate(checked):
        name = tool["function"]["name"]
        if name in names:
            raise OptionError(f"tools[{index}].function.name: there are two functions {name!r}")
        names.add(name)
    return checked


def check_depth(where: str, value: Any) -> None:
    """Raise OptionError where objects and lists are nested more than MAX_DEPTH deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise OptionError(f"{where} is nested more than {MAX_DEPTH} levels deep")


def _inside(value: Any) -> list[Any]:
    values = value.values() if isinstance(value, Mapping) else value
    return list(values) if isinstance(value, Mapping | list | tuple) else []


def _message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise OptionError(f"{where} must be an object with role and content, got {_shown(message)}")
    given = {key: value for key, value in message.items() if value is not None}
    _refuse_unknown(where, given, _MESSAGE_KEYS)
    calls = given.get("tool_calls")
    if calls is not None:
        given["tool_calls"] = _tool_calls(f"{where}.tool_calls", given.get("role"), calls)
    if not given.get("tool_calls"):
        given.pop("tool_calls", None)
        given.setdefault("content", None)
    for key in given.keys() & set(_TEXT_KEYS) | {"role"}:
        given[key] = _text(f"{where}.{key}", given.get(key))
    if "content" in given:
        given["content"] = _content(f"{where}.content", given["content"])
    return given


def _content(where: str, content: Any) -> str:
    if not isinstance(content, list | tuple):
        return _text(where, content)
    texts = []
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, Mapping):
            raise OptionError(
                f'{place} must be {{"type": "text", "text": ...}}, got {_shown(part)}'
            )
        if part.get("type") != "text":
            raise OptionError(
                f"{place}.type {_shown(part.get('type'))} is not supported; this engine takes text"
            )
        _refuse_unknown(place, part, ("type", "text"))
        texts.append(_text(f"{place}.text", part.get("text")))
    return "".join(texts)


def _tool_calls(where: str, role: Any, calls: Any) -> list[dict[str, Any]]:
    if role != "assistant":
        raise OptionError(f"{where} is for messages of the assistant, got role {_shown(role)}")
    if not isinstance(calls, list | tuple):
        raise OptionError(f"{where} must be a list of calls, got {_shown(calls)}")
    return [_tool_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise OptionError(
            f'{where} must be {{"id": ..., "type": "function", "function": {{"name": ..., '
            f'"arguments": ...}}}}, got {_shown(call)}'
        )
    _refuse_unknown(where, call, ("id", "type", "function", "index"))
    _refuse_unknown(f"{where}.function", function, ("name", "arguments"))
    _check_type(where, call.get("type", "function"))
    arguments = _arguments(f"{where}.function.arguments", function.get("arguments"))
    name = _text(f"{where}.function.name", function.get("name"))
    plain = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call.get("id") is not None:
        plain = {"id": _text(f"{where}.id", call["id"]), **plain}
    return plain


def _arguments(where: str, arguments: Any) -> Any:
    if isinstance(arguments, Mapping):
        check_depth(where, arguments)
        return dict(arguments)
    text = _text(where, arguments)
    try:
        parsed = json.loads(text, parse_constant=_text_of_no_json)
        check_depth(where, parsed)
    except (ValueError, RecursionError):  # also OptionError: too deep to be anything but a text
        return text
    return parsed if isinstance(parsed, dict) else text


def _text_of_no_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _tool(where: str, tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        raise OptionError(
            f'{where} must be {{"type": "function", "function": {{"name": ..., ...}}}}, got '
            f"{_shown(tool)}"
        )
    _refuse_unknown(where, tool, ("type", "function"))
    _check_type(where, tool.get("type"))
    function = {key: value for key, value in function.items() if value is not None}
    where = f"{where}.function"
    _refuse_unknown(where, function, _FUNCTION_KEYS)
    name = _text(f"{where}.name", function.get("name"))
    if not _FUNCTION_NAME.fullmatch(name):
        raise OptionError(
            f"{where}.name must be 1 to 64 letters, digits, _ or -, got {_shown(name)}"
        )
    if "description" in function:
        _text(f"{where}.description", function["description"])
    if not isinstance(function.get("strict", False), bool):
        raise OptionError(f"{where}.strict must be true or false, got {_shown(function['strict'])}")
    if "parameters" in function:
        _check_parameters(f"{where}.parameters", function["parameters"])
    return {"type": "function", "function": function}


def _check_parameters(where: str, parameters: Any) -> None:
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise OptionError(
            f'{where} must be a JSON schema with "type": "object", got {_shown(parameters)}'
        )
    check_depth(where, parameters)


def _check_type(where: str, given: Any) -> None:
    if given != "function":
        raise OptionError(f'{where}.type must be "function", got {_shown(given)}')


def _refuse_unknown(where: str, given: Mapping[Any, Any], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise OptionError(f"{where}.{key!s:.80} is not supported; known: {', '.join(known)}")


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise OptionError(f"{where} must be a string, got {_shown(value)}")
    return str(value)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "something nested too deep to show"
    return text if len(text) <= 80 else f"{text[:77]}..."
