"""What a request's `tools`, `tool_choice` and `parallel_tool_calls` mean for its prompt, its
sampling and its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outpace.errors import OptionError
from outpace.grammar.source import MAX_BYTES
from outpace.models.chat_messages import checked_tools
from outpace.models.tokenizer import Tokenizer
from outpace.params import StructuredOutputsParams
from outpace.serving.errors import ApiError
from outpace.serving.tools.events import ArgumentsDelta, ContentDelta, ToolCallStart
from outpace.serving.tools.grammar import answer_grammar
from outpace.serving.tools.parser import ToolParser
from outpace.serving.tools.schema import arguments_schema, calls_schema
from outpace.serving.tools.syntax import Syntax, constrained, hides_markers, syntax_of

_MODES = ("none", "auto", "required")


@dataclass(frozen=True, kw_only=True, eq=False)
class ToolSetup:
    """A request with tools.

    tools_for_prompt: goes beside the messages: {"messages": [...], "tools": tools_for_prompt}.
    structured_outputs: what the answer is held to (None: nothing). A request whose
        `response_format` or structured outputs say something else cannot be honoured.
    sampling_overrides: fields of SamplingParams that have to be so for `whole` and `parser` to
        work: skip_special_tokens=False where the marks around calls are special tokens. The token
        that ends an answer is not in the text even so.
    syntax, names, only: see `ToolParser`.
    """

    tools_for_prompt: list[dict[str, Any]]
    structured_outputs: StructuredOutputsParams | None
    syntax: Syntax
    names: tuple[str, ...]
    only: str = ""
    sampling_overrides: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_request(
        cls,
        tools: Any,
        tool_choice: Any,
        parallel_tool_calls: bool | None,
        tokenizer: Tokenizer,
        max_schema_bytes: int,
    ) -> ToolSetup | None:
        """Of a request's fields, as they came (None: absent). None without tools, and where
        `tool_choice` is "none": then tools are neither shown nor looked for.

        Raises ApiError for what is malformed, does not fit together, or is too large.
        """
        if tools is None:
            # Several at once is what OpenAI takes it for where nothing is said.
            is_single = False if parallel_tool_calls is False else None
            for name, value in _given(tool_choice, is_single):
                raise _refusal(name, f"{name} is {value!r:.80}, but there are no tools")
            return None
        try:
            tools = checked_tools(tools)
        except OptionError as error:
            raise _refusal("tools", str(error)) from None
        functions = [tool["function"] for tool in tools]
        shown = [_without_strict(tool) for tool in tools]
        for function in functions:
            _check_size(function.get("parameters"), max_schema_bytes)
        mode, only = _choice(tool_choice, [function["name"] for function in functions])
        if mode == "none":
            return None
        syntax = syntax_of(tokenizer)
        is_single = parallel_tool_calls is False
        if only:
            functions = [one for one in functions if one["name"] == only]
            return cls._held_to(shown, functions, arguments_schema(functions[0]), syntax, only)
        if mode == "required":
            schema = calls_schema(functions, syntax.arguments_key, is_single)
            _check_size(schema, max_schema_bytes)
            return cls._held_to(shown, functions, schema, constrained(syntax))
        return cls._free(shown, functions, syntax, tokenizer, is_single)

    @classmethod
    def _held_to(
        cls,
        tools: list[dict[str, Any]],
        functions: list[dict[str, Any]],
        schema: dict[str, Any],
        syntax: Syntax,
        only: str = "",
    ) -> ToolSetup:
        """The answer is nothing but calls, or the arguments of one function."""
        return cls(
            tools_for_prompt=tools,
            structured_outputs=StructuredOutputsParams(json=schema, disable_any_whitespace=True),
            syntax=syntax,
            names=_names(functions),
            only=only,
        )

    @classmethod
    def _free(
        cls,
        tools: list[dict[str, Any]],
        functions: list[dict[str, Any]],
        syntax: Syntax,
        tokenizer: Tokenizer,
        is_single: bool,
    ) -> ToolSetup:
        """The model decides whether to call. It is held to a grammar only as far as the request
        asks for it: one call at most, or arguments of strict functions."""
        structured = None
        if is_single or any(function.get("strict") for function in functions):
            grammar = answer_grammar(functions, syntax, tokenizer.vocab(), is_single)
            _check_grammar(grammar)
            structured = StructuredOutputsParams(grammar=grammar)
        overrides = {"skip_special_tokens": False} if hides_markers(syntax, tokenizer) else {}
        return cls(
            tools_for_prompt=tools,
            structured_outputs=structured,
            syntax=syntax,
            names=_names(functions),
            sampling_overrides=overrides,
        )

    def parser(self) -> ToolParser:
        """A parser for one streamed answer."""
        return ToolParser(self.syntax, self.names, self.only)

    def whole(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        """(content, calls) of a whole answer, the joined events of its stream. Content is None
        where there are calls and nothing else was said."""
        parser = self.parser()
        content: list[str] = []
        calls: list[dict[str, Any]] = []
        for event in [*parser.feed(text), *parser.finish()]:
            if isinstance(event, ContentDelta):
                content.append(event.text)
            elif isinstance(event, ToolCallStart):
                function = {"name": event.name, "arguments": ""}
                calls.append({"id": event.id, "type": "function", "function": function})
            elif isinstance(event, ArgumentsDelta):
                calls[event.index]["function"]["arguments"] += event.text
        return "".join(content) or (None if calls else ""), calls

    def finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """What to report for an answer with so many calls that ended for `reason`: "tool_calls"
        where it is complete, except for a function that the request named (OpenAI says "stop")."""
        return "tool_calls" if reason == "stop" and num_calls and not self.only else reason


def _without_strict(tool: dict[str, Any]) -> dict[str, Any]:
    # Meant for us: no model has seen it in its prompts.
    function = {key: value for key, value in tool["function"].items() if key != "strict"}
    return {**tool, "function": function}


def _names(functions: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(function["name"] for function in functions)


def _given(tool_choice: Any, parallel_tool_calls: bool | None) -> list[tuple[str, Any]]:
    fields = {"tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls}
    return [(name, value) for name, value in fields.items() if value is not None]


def _choice(given: Any, names: list[str]) -> tuple[str, str]:
    """(mode, function that the request names or "") of a `tool_choice`."""
    if given is None:
        return "auto", ""
    if isinstance(given, str) and given in _MODES:
        return given, ""
    function = given.get("function") if isinstance(given, Mapping) else None
    shape = {"type": "function", "function": {"name": "..."}}
    if not isinstance(function, Mapping) or given != {**shape, "function": function}:
        raise _refusal(
            "tool_choice",
            f"tool_choice must be one of {', '.join(_MODES)} or {json.dumps(shape)}, got "
            f"{given!r:.80}",
        )
    name = function.get("name")
    if name not in names or len(function) != 1:
        raise _refusal(
            "tool_choice",
            f"tool_choice names the function {name!r:.80}; tools has {', '.join(names):.200}",
        )
    return "named", name


def _check_size(schema: Any, max_bytes: int) -> None:
    size = len(json.dumps(schema, ensure_ascii=False).encode(errors="surrogatepass"))
    if size > max_bytes:
        raise _refusal("tools", f"the JSON schemas of tools may have {max_bytes} bytes, got {size}")


def _check_grammar(grammar: str) -> None:
    """Raise for what would be refused later, in the name of a field that the request lacks."""
    size = len(grammar.encode(errors="surrogatepass"))
    if size > MAX_BYTES["grammar"]:
        raise _refusal(
            "tools",
            "tools with strict=true or without parallel calls make a grammar, which may have "
            f"{MAX_BYTES['grammar']} bytes, got {size}; shorten their schemas, or leave that out",
        )


def _refusal(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)
