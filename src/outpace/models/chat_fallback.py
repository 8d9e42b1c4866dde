"""Tools for models whose chat template knows nothing of them.

Such a template would drop tools, calls and results without a word. Instead they are written as text
into the turns that it knows, in the style of Hermes, which many models have seen in training:

- the functions, as JSON within <tools></tools>, end the system message, and with them the request
  to answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>; a conversation without a
  system message gets one, and where the template takes none, the first user message begins so;
- an earlier call of the assistant is written that way, after what else was said in the turn;
- results, of neighbouring `tool` messages together, are a user turn of
  <tool_response>...</tool_response>.
"""

from __future__ import annotations

import json
from typing import Any

_INSTRUCTIONS = """\
You can call functions. Here they are, as JSON within <tools></tools>:
<tools>
{tools}
</tools>

To call one, answer with its name and its arguments as a JSON object within <tool_call></tool_call>:
<tool_call>
{{"name": "name of the function", "arguments": {{"name of a parameter": "value"}}}}
</tool_call>
Call a function only where it helps; otherwise answer as usual."""


def needs_fallback(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> bool:
    """Whether there is anything that a template without tools would drop or refuse."""
    told = any("tool_calls" in message or message["role"] == "tool" for message in messages)
    return told or bool(tools)


def with_tools_as_text(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, into: str = "system"
) -> list[dict[str, Any]]:
    """The conversation with everything about tools written as text. New lists and dictionaries.

    into: "system", or "user": where the functions are described.
    """
    plain: list[dict[str, Any]] = []
    follows_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result and follows_result:
            plain[-1]["content"] += "\n" + _result(message)
        elif is_result:
            plain.append({"role": "user", "content": _result(message)})
        else:
            plain.append(_without_calls(message))
        follows_result = is_result
    if not tools:
        return plain
    text = _INSTRUCTIONS.format(tools="\n".join(_json(tool) for tool in tools))
    return _with_user_text(plain, text) if into == "user" else _with_system_text(plain, text)


def _with_system_text(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    first, *rest = messages
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{text}"}, *rest]


def _with_user_text(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    messages = list(messages)
    for index, message in enumerate(messages):
        if message["role"] == "user":
            messages[index] = {**message, "content": f"{text}\n\n{message['content']}"}
            return messages
    return [{"role": "user", "content": text}, *messages]


def _without_calls(message: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    said = [plain["content"]] if plain.get("content") else []
    calls = [
        f"<tool_call>\n{_json(call['function'])}\n</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    return {**plain, "content": "\n".join([*said, *calls])}


def _result(message: dict[str, Any]) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
