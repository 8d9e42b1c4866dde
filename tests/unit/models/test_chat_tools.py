"""Prompts with tools: as the model's template has them, or as text where it has no place."""

from __future__ import annotations

from typing import Any

import pytest
from chat_templates import (
    CLOCK,
    LLAMA,
    MISTRAL,
    NO_SYSTEM,
    PLAIN,
    QWEN,
    SPECIAL,
    TEMPLATES,
    TOOLS,
    WEATHER,
    conversation,
    tool_call,
)
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from outpace.errors import OptionError
from outpace.models.chat import ChatTemplate

USER = {"role": "user", "content": "Hi"}


def render(template: str, messages: Any, tools: Any = None, add: bool = True) -> str:
    return ChatTemplate(template, SPECIAL).render(messages, add, tools)


def transformers_render(template: str, messages: Any, tools: Any, add: bool) -> str:
    """What transformers makes of messages whose arguments are objects already."""
    plain = [{k: v for k, v in message.items() if v is not None} for message in messages]
    for message in plain:
        if "tool_calls" in message:
            arguments = {"city": "Köln", "days": 1}
            function = {"name": "get_weather", "arguments": arguments}
            message["tool_calls"] = [{"id": "abcdefgh1", "type": "function", "function": function}]
    rendered, _ = render_jinja_template(
        [plain], tools=tools, chat_template=template, add_generation_prompt=add, **SPECIAL
    )
    return rendered[0]


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("template", [QWEN, LLAMA, MISTRAL], ids=["qwen", "llama", "mistral"])
def test_templates_that_know_tools_equal_transformers(
    template: str, tools: Any, system: bool, add: bool
) -> None:
    messages = conversation(system=system)
    ours = render(template, messages, tools, add)
    assert ours == transformers_render(template, messages, tools, add)
    assert "°C" in ours
    assert ('"clock"' in ours) == (tools is not None)


def test_which_templates_know_tools() -> None:
    known = {name for name, source in TEMPLATES.items() if ChatTemplate(source, {}).knows_tools}
    assert known == {"qwen", "llama", "mistral"}
    assert not ChatTemplate("{% for %}", {}).knows_tools
    assert not ChatTemplate("tools", {}).knows_tools
    assert ChatTemplate("{% if x %}{{ tools | tojson }}{% endif %}", {}).knows_tools


def test_golden_prompt_of_a_template_with_tools() -> None:
    assert render(QWEN, [USER], [CLOCK]) == (
        "<|im_start|>system\nFunctions:\n<tools>\n"
        '{"type": "function", "function": {"name": "clock"}}\n'
        "</tools>\nCall them in <tool_call></tool_call>.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


DESCRIBED = (
    "You can call functions. Here they are, as JSON within <tools></tools>:\n"
    "<tools>\n"
    '{"type": "function", "function": {"name": "clock"}}\n'
    "</tools>\n\n"
    "To call one, answer with its name and its arguments as a JSON object within "
    "<tool_call></tool_call>:\n"
    "<tool_call>\n"
    '{"name": "name of the function", "arguments": {"name of a parameter": "value"}}\n'
    "</tool_call>\n"
    "Call a function only where it helps; otherwise answer as usual."
)


def test_golden_prompt_of_a_template_without_tools() -> None:
    messages = conversation()
    assert render(PLAIN, messages, [CLOCK]) == (
        f"<|im_start|>system\nBe brief.\n\n{DESCRIBED}<|im_end|>\n"
        "<|im_start|>user\nHow warm is it in Köln?<|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Köln", "days": 1}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n21 °C\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n21 °C.<|im_end|>\n"
        "<|im_start|>user\nAnd <b>here</b>?<|im_end|>\n<|im_start|>assistant\n"
    )
    # Without tools in the request the past is told all the same, and nothing is described.
    without = render(PLAIN, messages)
    assert without == render(PLAIN, messages, [CLOCK]).replace(f"\n\n{DESCRIBED}", "")


def test_a_conversation_without_a_system_message_gets_one() -> None:
    assert render(PLAIN, [USER], [CLOCK]) == (
        f"<|im_start|>system\n{DESCRIBED}<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_without_system_messages_is_told_in_the_user_turn() -> None:
    assert render(NO_SYSTEM, [USER], [CLOCK]) == f"<user>{DESCRIBED}\n\nHi</user>"
    assert render(NO_SYSTEM, conversation(system=False), [CLOCK]).startswith(f"<user>{DESCRIBED}")
    with pytest.raises(OptionError, match="no system role"):
        render(NO_SYSTEM, conversation(), [CLOCK])
    with pytest.raises(OptionError, match="roles must alternate"):
        render(NO_SYSTEM, [USER, USER], [CLOCK])


def test_neighbouring_results_are_one_user_turn() -> None:
    calls = [tool_call("clock", "{}", "a"), tool_call("clock", "not json", "b")]
    results = [{"role": "tool", "tool_call_id": one, "content": one * 2} for one in "ab"]
    messages = [USER, {"role": "assistant", "content": "Wait.", "tool_calls": calls}, *results]
    assert render(NO_SYSTEM, messages) == (
        "<user>Hi</user><assistant>Wait.\n<tool_call>\n"
        '{"name": "clock", "arguments": {}}\n</tool_call>\n<tool_call>\n'
        '{"name": "clock", "arguments": "not json"}\n</tool_call></assistant>'
        "<user><tool_response>\naa\n</tool_response>\n<tool_response>\nbb\n</tool_response></user>"
    )


@pytest.mark.model
def test_the_default_model_is_told_of_tools(
    default_tokenizer_of_transformers: PreTrainedTokenizerFast,
) -> None:
    """Its template knows none; transformers drops them, which is what the fallback is for."""
    reference = default_tokenizer_of_transformers
    template = ChatTemplate(reference.chat_template, {})
    dropped = reference.apply_chat_template([USER], tools=TOOLS, tokenize=False)
    assert not template.knows_tools
    assert "get_weather" not in dropped
    assert "get_weather" in template.render([USER], True, TOOLS)


# --- content -----------------------------------------------------------------------------------


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
    for role in ("system", "user", "assistant", "tool"):
        told = render("{{ messages[0].content }}", [{"role": role, "content": parts}])
        assert "a b" in told
    assert render("[{{ messages[0].content }}]", [{"role": "user", "content": []}]) == "[]"


def test_what_is_null_is_absent() -> None:
    template = "{% if tools %}{% endif %}{{ messages[0] | tojson }}"
    for nothing in ({"tool_calls": None}, {"tool_calls": []}, {"refusal": None, "name": None}):
        assert render(template, [{**USER, "role": "assistant", **nothing}]) == (
            '{"role": "assistant", "content": "Hi"}'
        )
    call = {"role": "assistant", "content": None, "tool_calls": [tool_call("f", "{}")]}
    assert '"content"' not in render(template, [call])


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ('{"a": {"b": [1, "ü"]}}', '{"a": {"b": [1, "ü"]}}'),
        ("{}", "{}"),
        ("[1]", '"[1]"'),
        ("{", '"{"'),
        ("", '""'),
        ('{"a": NaN}', '"{\\"a\\": NaN}"'),
        ("[" * 5000, '"' + "[" * 5000 + '"'),
        ('{"a": ' + "1" * 5000 + "}", '"{\\"a\\": ' + "1" * 5000 + '}"'),
        ('{"a":' * 80 + "1" + "}" * 80, None),
    ],
)
def test_arguments_are_an_object_where_they_are_one(text: str, seen: str | None) -> None:
    template = "{% if tools %}{% endif %}{{ messages[0].tool_calls[0].function.arguments|tojson }}"
    told = render(template, [{"role": "assistant", "tool_calls": [tool_call("f", text)]}])
    assert told == (seen if seen is not None else '"' + text.replace('"', '\\"') + '"')


CALL = tool_call("f", "{}")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({**USER, "colour": "red"}, r"messages\[0\].colour is not supported; known: role"),
        ({**USER, "content": {"type": "text"}}, r"messages\[0\].content must be a string"),
        ({**USER, "content": ["a"]}, r"messages\[0\].content\[0\] must be"),
        (
            {**USER, "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]},
            r"content\[0\].type 'image_url' is not supported",
        ),
        (
            {**USER, "content": [{"type": "text", "text": "a", "cache": 1}]},
            r"content\[0\].cache is not supported",
        ),
        ({**USER, "content": [{"type": "text", "text": 5}]}, r"content\[0\].text must be a string"),
        ({"role": "assistant", "tool_calls": []}, "content must be a string, got None"),
        ({**USER, "tool_calls": [CALL]}, r"tool_calls is for messages of the assistant.*'user'"),
        ({**USER, "name": 5}, r"messages\[0\].name must be a string"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, "tool_call_id must be a string"),
    ],
)
def test_malformed_messages_are_named(message: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        render(QWEN, [message])


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ("x", r"messages\[0\].tool_calls must be a list"),
        ([5], r"tool_calls\[0\] must be \{"),
        ([{"id": "a", "type": "function"}], r"tool_calls\[0\] must be \{"),
        ([{**CALL, "colour": 1}], r"tool_calls\[0\].colour is not supported"),
        ([{**CALL, "type": "custom"}], r'tool_calls\[0\].type must be "function", got \'custom\''),
        ([{**CALL, "id": 5}], r"tool_calls\[0\].id must be a string"),
        ([CALL, tool_call("f", None)], r"\[1\].function.arguments must be a string"),  # type: ignore[arg-type]
        ([{"function": {"name": 1, "arguments": ""}}], r"function.name must be a string"),
        ([{"function": {"name": "f", "arguments": "", "x": 1}}], r"function.x is not supported"),
    ],
)
def test_malformed_calls_are_named(calls: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        render(QWEN, [{"role": "assistant", "content": "", "tool_calls": calls}])


def function(**values: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **values}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([], "non-empty list"),
        ({}, "non-empty list"),
        ([5], r"tools\[0\] must be"),
        ([{"type": "function"}], r"tools\[0\] must be"),
        ([{**CLOCK, "x": 1}], r"tools\[0\].x is not supported"),
        ([{**CLOCK, "type": "custom"}], r"tools\[0\].type must be"),
        ([function(name="a b")], r"tools\[0\].function.name must be 1 to 64"),
        ([function(name="a" * 65)], "must be 1 to 64"),
        ([function(name="ä")], "must be 1 to 64"),
        ([function(name="a\n")], "must be 1 to 64"),
        ([{"type": "function", "function": {}}], r"function.name must be a string, got None"),
        ([CLOCK, WEATHER, CLOCK], r"tools\[2\].function.name: there are two functions 'clock'"),
        ([function(name=f"f{index}") for index in range(129)], "at most 128 functions, got 129"),
        ([function(description=5)], "description must be a string"),
        ([function(strict="yes")], "strict must be true or false"),
        ([function(returns={})], "function.returns is not supported"),
        ([function(parameters=[])], 'parameters must be a JSON schema with "type": "object"'),
        ([function(parameters={"type": "array"})], '"type": "object"'),
        ([function(parameters=nested(40))], "more than 64 levels deep"),
    ],
)
def test_malformed_tools_are_named(tools: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        render(QWEN, [USER], tools)
    with pytest.raises(OptionError, match=reason):
        render(PLAIN, [USER], tools)


def test_the_most_that_tools_may_be() -> None:
    tools = [function(name=f"f{index}", parameters=nested(30)) for index in range(128)]
    assert render(QWEN, [USER], tools).count('"f127"') == 1


def test_what_was_given_is_left_alone() -> None:
    messages, before = conversation(), conversation()
    for template in (QWEN, PLAIN):
        render(template, messages, TOOLS)
        assert messages == before
        assert TOOLS == [WEATHER, {"type": "function", "function": {"name": "clock"}}]
