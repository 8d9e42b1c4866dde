"""tools, tool_choice and parallel_tool_calls: what they make of a request, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from chat_templates import (
    CLOCK,
    LLAMA,
    MISTRAL,
    NO_SYSTEM,
    PLAIN,
    QWEN,
    TOOLS,
    WEATHER,
    byte_tokenizer,
)

from outpace.engine.fold import OutputFold
from outpace.params import SamplingParams
from outpace.serving.errors import ApiError
from outpace.serving.tools import ToolSetup
from outpace.serving.tools.syntax import HERMES, LLAMA3, syntax_of
from outpace.serving.tools.syntax import MISTRAL as MISTRAL_SYNTAX

QWEN_TOKENIZER = byte_tokenizer(QWEN)
ARGUMENTS = '{"city":"Köln"}'


def setup(
    tool_choice: Any = None,
    parallel: bool | None = None,
    *,
    tools: Any = TOOLS,
    tokenizer: Any = QWEN_TOKENIZER,
    max_schema_bytes: int = 65536,
) -> ToolSetup:
    found = ToolSetup.from_request(tools, tool_choice, parallel, tokenizer, max_schema_bytes)
    assert found is not None
    return found


def test_without_tools_there_is_nothing_to_set_up() -> None:
    assert ToolSetup.from_request(None, None, None, QWEN_TOKENIZER, 100) is None
    assert ToolSetup.from_request(TOOLS, "none", None, QWEN_TOKENIZER, 10000) is None


@pytest.mark.parametrize(
    ("template", "syntax"),
    [
        (QWEN, HERMES),
        (LLAMA, LLAMA3),
        (MISTRAL, MISTRAL_SYNTAX),
        (PLAIN, HERMES),
        (NO_SYSTEM, HERMES),
        (None, HERMES),
        ("{{ tools }}", HERMES),
        ("{{ tools }}<|python_tag|>", LLAMA3),
        ("[TOOL_CALLS]", HERMES),  # but tools are written as text, in the style of Hermes
    ],
)
def test_the_template_says_how_calls_are_written(template: str | None, syntax: Any) -> None:
    assert syntax_of(byte_tokenizer(template)) == syntax


def test_auto_shows_the_tools_and_leaves_the_rest_to_the_model() -> None:
    for found in (setup(), setup("auto"), setup("auto", True)):
        assert found.tools_for_prompt == TOOLS
        assert found.structured_outputs is None
        assert found.sampling_overrides == {}
        content, calls = found.whole(
            'So: <tool_call>{"name": "get_weather", "arguments": ' + ARGUMENTS + "}</tool_call>"
        )
        assert content == "So:"
        assert calls == [
            {
                "id": calls[0]["id"],
                "type": "function",
                "function": {"name": "get_weather", "arguments": ARGUMENTS},
            }
        ]
        assert found.whole("So.") == ("So.", [])
        assert found.whole("") == ("", [])
        assert found.whole('<tool_call>{"name": "clock", "arguments": {}}')[0] is None


def test_strict_is_for_the_grammar_alone() -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    found = setup(tools=[strict, CLOCK])
    assert found.tools_for_prompt == TOOLS
    assert found.structured_outputs is not None
    assert found.structured_outputs.kind == "grammar"
    lax = {**WEATHER, "function": {**WEATHER["function"], "strict": False}}
    assert setup(tools=[lax, CLOCK]).structured_outputs is None


@pytest.mark.parametrize(
    ("template", "marks"),
    [(QWEN, ("<tool_call>",)), (LLAMA, ("<|python_tag|>",)), (MISTRAL, ("[TOOL_CALLS]",))],
)
def test_marks_that_are_special_tokens_stay_in_the_text(
    template: str, marks: tuple[str, ...]
) -> None:
    tokenizer = byte_tokenizer(template, marks)
    found = setup(tokenizer=tokenizer)
    assert found.sampling_overrides == {"skip_special_tokens": False}
    assert setup("required", tokenizer=tokenizer).sampling_overrides == {}
    inner = '{"name": "clock", "arguments": {}}'
    inner = f"[{inner}]" if template == MISTRAL else inner
    ids = tokenizer.encode(f"Hm {marks[0]}{inner}<e>", add_special_tokens=False)
    params = SamplingParams(max_tokens=500, **found.sampling_overrides)
    fold = OutputFold(tokenizer, params, tokenizer.end_token_ids, 500)
    assert [fold.push(token) for token in ids][-1]
    content, calls = found.whole(fold.text)
    assert content == "Hm"  # without the token that ended the answer
    assert [call["function"]["name"] for call in calls] == ["clock"]


def schema_of(found: ToolSetup) -> Any:
    assert found.structured_outputs is not None
    return found.structured_outputs.json


def accepts(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize(("template", "key"), [(QWEN, "arguments"), (LLAMA, "parameters")])
def test_required_holds_the_answer_to_calls(template: str, key: str) -> None:
    found = setup("required", tokenizer=byte_tokenizer(template))
    schema = schema_of(found)
    jsonschema.Draft202012Validator.check_schema(schema)
    weather = {"name": "get_weather", key: {"city": "Köln"}}
    clock = {"name": "clock", key: {}}
    assert accepts(schema, [weather])
    assert accepts(schema, [clock, weather, clock])
    for wrong in (
        [],
        {},
        weather,
        [{"name": "get_weather", key: {}}],
        [{"name": "clock", key: {"city": "Köln"}}],
        [{"name": "other", key: {}}],
        [{"name": "clock"}],
        [{**clock, "x": 1}],
    ):
        assert not accepts(schema, wrong)
    content, calls = found.whole(json.dumps([weather, clock]))
    assert content is None
    assert [call["function"]["name"] for call in calls] == ["get_weather", "clock"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Köln"}
    single = schema_of(setup("required", False, tokenizer=byte_tokenizer(template)))
    assert accepts(single, [clock])
    assert not accepts(single, [clock, clock])


def test_references_within_parameters_keep_their_meaning() -> None:
    tree = {
        "type": "object",
        "properties": {
            "value": {"$ref": "#/$defs/Value"},
            "more": {"type": "array", "items": {"$ref": "#"}},
            "$ref": {"const": {"$ref": "#/x"}},
        },
        "required": ["value"],
        "additionalProperties": False,
        "$defs": {"Value": {"type": "integer"}},
    }
    other = {**tree, "$defs": {"Value": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in (("a", tree), ("b", other))
    ]
    schema = schema_of(setup("required", tools=tools))
    for name, value, wrong in (("a", 1, "x"), ("b", "x", 1)):
        right = {"value": value, "more": [{"value": value}], "$ref": {"$ref": "#/x"}}
        assert accepts(schema, [{"name": name, "arguments": right}])
        for bad in ({"value": wrong}, {"value": value, "more": [{"value": wrong}]}):
            assert not accepts(schema, [{"name": name, "arguments": bad}])


NAMED = {"type": "function", "function": {"name": "get_weather"}}


def test_a_named_function_gets_the_answer_as_its_arguments() -> None:
    found = setup(NAMED)
    assert found.tools_for_prompt == TOOLS
    assert schema_of(found) == WEATHER["function"]["parameters"]
    content, calls = found.whole(ARGUMENTS)
    assert content is None
    assert calls[0]["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    assert accepts(schema_of(setup({"type": "function", "function": {"name": "clock"}})), {})
    assert found.whole("") == ("", [])


def test_the_finish_reason_follows_openai() -> None:
    auto, named = setup(), setup(NAMED)
    assert auto.finish_reason("stop", 1) == "tool_calls"
    assert auto.finish_reason("stop", 0) == "stop"
    assert auto.finish_reason("length", 1) == "length"
    assert auto.finish_reason(None, 1) is None
    assert setup("required").finish_reason("stop", 2) == "tool_calls"
    assert named.finish_reason("stop", 1) == "stop"


@pytest.mark.parametrize(
    ("tools", "choice", "parallel", "param", "reason"),
    [
        (None, "auto", None, "tool_choice", "there are no tools"),
        (None, "none", None, "tool_choice", "there are no tools"),
        (None, NAMED, None, "tool_choice", "there are no tools"),
        (None, None, False, "parallel_tool_calls", "there are no tools"),
        ([], None, None, "tools", "non-empty list"),
        ([CLOCK, CLOCK], None, None, "tools", r"tools\[1\].function.name: there are two"),
        ([CLOCK] * 129, "none", None, "tools", "at most 128"),
        (TOOLS, "any", None, "tool_choice", "one of none, auto, required or"),
        (TOOLS, 5, None, "tool_choice", "one of none"),
        (TOOLS, {"type": "function"}, None, "tool_choice", "one of none"),
        (TOOLS, {**NAMED, "x": 1}, None, "tool_choice", "one of none"),
        (TOOLS, {**NAMED, "type": "allowed_tools"}, None, "tool_choice", "one of none"),
        (TOOLS, {"type": "function", "name": "clock"}, None, "tool_choice", "one of none"),
        (
            [CLOCK],
            NAMED,
            None,
            "tool_choice",
            "names the function 'get_weather'; tools has clock",
        ),
        (
            TOOLS,
            {"type": "function", "function": {"name": "clock", "x": 1}},
            None,
            "tool_choice",
            "names the function",
        ),
        (TOOLS, {"type": "function", "function": {}}, None, "tool_choice", "function None"),
        (
            TOOLS,
            {"type": "function", "function": {"name": ["clock"]}},
            None,
            "tool_choice",
            "names the function",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tools: Any, choice: Any, parallel: Any, param: str, reason: str
) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        ToolSetup.from_request(tools, choice, parallel, QWEN_TOKENIZER, 65536)
    assert caught.value.status == 400
    assert caught.value.param == param


def test_schemas_have_a_greatest_size() -> None:
    size = len(json.dumps(WEATHER["function"]["parameters"]))
    assert setup(max_schema_bytes=size).names == ("get_weather", "clock")
    with pytest.raises(ApiError, match=f"may have {size - 1} bytes, got {size}"):
        setup(max_schema_bytes=size - 1)
    with pytest.raises(ApiError, match="may have"):  # the schema of all calls is larger
        setup("required", max_schema_bytes=size)
    setup(NAMED, max_schema_bytes=size)


@pytest.mark.parametrize(("strict", "parallel"), [(True, None), (True, False)])
def test_a_grammar_of_tools_has_a_greatest_size(strict: bool, parallel: bool | None) -> None:
    """The refusal names the tools: there is no field of a grammar in the request."""

    def tool(num_bytes: int) -> dict[str, Any]:
        schema = {"type": "object", "description": "x" * num_bytes}
        return {
            "type": "function",
            "function": {"name": "f", "strict": strict, "parameters": schema},
        }

    assert setup(parallel=parallel, tools=[tool(100)]).structured_outputs is not None
    with pytest.raises(ApiError, match="grammar, which may have 16384 bytes") as caught:
        setup(parallel=parallel, tools=[tool(17_000)])
    assert (caught.value.status, caught.value.param) == (400, "tools")


def test_parsers_are_independent() -> None:
    found = setup()
    first, second = found.parser(), found.parser()
    first.feed("<tool_call>")
    assert [event.as_delta() for event in second.feed("x")] == [{"content": "x"}]
    assert [event.as_delta() for event in first.finish()] == [{"content": "<tool_call>"}]
