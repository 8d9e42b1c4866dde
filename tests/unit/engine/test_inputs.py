"""Prompts with tools beside their messages."""

from __future__ import annotations

from typing import Any

import pytest
from chat_templates import CLOCK, PLAIN, QWEN, TOOLS, byte_tokenizer, conversation

from outpace.engine.inputs import split_salt, to_conversations, to_token_ids
from outpace.errors import OptionError

TOKENIZER = byte_tokenizer(QWEN)


def text_of(prompt: Any, template: str = QWEN) -> str | None:
    tokenizer = byte_tokenizer(template)
    text, ids = to_token_ids(prompt, tokenizer, tokenizer.vocab_size)
    assert ids == tokenizer.encode(text or "", add_special_tokens=False)
    return text


@pytest.mark.parametrize("template", [QWEN, PLAIN])
def test_tools_go_to_the_template(template: str) -> None:
    messages = conversation()
    expected = byte_tokenizer(template).apply_chat_template(messages, True, TOOLS)
    assert text_of({"messages": messages, "tools": TOOLS}, template) == expected
    assert '"clock"' in expected
    without = byte_tokenizer(template).apply_chat_template(messages)
    assert text_of({"messages": messages, "tools": None}, template) == without != expected
    assert text_of({"messages": messages}, template) == without == text_of(messages, template)


def test_tools_stand_beside_a_salt_and_in_a_conversation() -> None:
    prompt = {"messages": conversation(), "tools": TOOLS, "cache_salt": "a"}
    salt, rest = split_salt(prompt)
    assert (salt, set(rest)) == ("a", {"messages", "tools"})
    assert to_conversations(prompt) == [prompt]


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ({"messages": conversation(), "tools": []}, "tools must be a non-empty list"),
        ({"messages": conversation(), "tools": [CLOCK, CLOCK]}, "two functions 'clock'"),
        ({"messages": "hi", "tools": TOOLS}, "messages must be a list"),
        ({"messages": conversation(), "functions": TOOLS}, "got keys"),
        ({"prompt": "hi", "tools": TOOLS}, 'this with "tools" or without'),
        ({"prompt_token_ids": [1], "tools": TOOLS}, "got keys"),
        ({"tools": TOOLS}, "got keys"),
    ],
)
def test_tools_elsewhere_are_refused(prompt: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        to_token_ids(prompt, TOKENIZER, TOKENIZER.vocab_size)
