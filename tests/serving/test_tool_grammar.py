"""Free answers whose calls are held to what the request asks for."""

from __future__ import annotations

from typing import Any

import pytest
from chat_templates import CLOCK, LLAMA, MISTRAL, PLAIN, QWEN, WEATHER, byte_tokenizer

from outpace.grammar import GrammarCompiler
from outpace.models.tokenizer import Tokenizer
from outpace.serving.tools import ToolSetup

STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
STRICT["function"]["parameters"] = {
    **WEATHER["function"]["parameters"],
    "additionalProperties": False,
}


class Checker:
    """Whether a setup's grammar takes texts, token by token, as the engine asks it."""

    def __init__(self, tokenizer: Tokenizer, tools: list[Any], parallel: bool | None) -> None:
        setup = ToolSetup.from_request(tools, "auto", parallel, tokenizer, 65536)
        assert setup is not None
        assert setup.structured_outputs is not None
        self._tokenizer = tokenizer
        self._compiler = GrammarCompiler(
            tokenizer._backend.to_str, tokenizer.vocab_size, tokenizer.end_token_ids
        )
        self._grammar = self._compiler.compile(setup.structured_outputs)

    def takes(self, text: str) -> bool:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        matcher = self._grammar.matcher()
        return bool(matcher.validate_tokens(ids) == len(ids) and self._may_end(matcher, ids))

    def _may_end(self, matcher: Any, ids: list[int]) -> bool:
        matcher.consume_tokens(ids)
        return bool(matcher.is_accepting())


def call(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


RIGHT = call("get_weather", '{"city": "Köln", "days": 3}')
WRONG = call("get_weather", '{"days": 3}')
FREE = call("clock", '{"anything": [1, {"x": null}]}')


MARKS = ("<tool_call>", "</tool_call>")


@pytest.mark.parametrize(("special", "added"), [((), ()), (MARKS, ()), ((), MARKS)])
@pytest.mark.parametrize("template", [QWEN, PLAIN], ids=["qwen", "plain"])
def test_hermes(template: str, special: tuple[str, ...], added: tuple[str, ...]) -> None:
    tokenizer = byte_tokenizer(template, special, added)
    strict = Checker(tokenizer, [STRICT, CLOCK], None)
    for text in (
        "",
        "No <tool, no <b>call</b> {",
        f"<tool_call>{RIGHT}</tool_call>",
        f"Well.\n<tool_call>\n{RIGHT}\n</tool_call>\n<tool_call>\n{FREE}\n</tool_call> So.",
    ):
        assert strict.takes(text), text
    for text in (
        f"<tool_call>{WRONG}</tool_call>",
        f"Well <tool_call>{call('other', '{}')}</tool_call>",
        "<tool_call> is how I call",
        f"<tool_call>{RIGHT}",
        f"<tool_call>{RIGHT}</tool_call> <tool_call>{WRONG}</tool_call>",
    ):
        assert not strict.takes(text), text
    single = Checker(tokenizer, [WEATHER, CLOCK], False)
    for text in ("", "No.", f"Well <tool_call>{WRONG}</tool_call>"):
        assert single.takes(text), text
    for text in (
        f"<tool_call>{FREE}</tool_call><tool_call>{FREE}</tool_call>",
        f"<tool_call>{FREE}</tool_call> more",
    ):
        assert not single.takes(text), text


@pytest.mark.parametrize("special", [(), ("[TOOL_CALLS]",)])
def test_mistral(special: tuple[str, ...]) -> None:
    tokenizer = byte_tokenizer(MISTRAL, special)
    strict = Checker(tokenizer, [STRICT, CLOCK], None)
    for text in ("", "a [b] {", f"[TOOL_CALLS][{RIGHT}]", f"So [TOOL_CALLS][{FREE}, {RIGHT}]"):
        assert strict.takes(text), text
    for text in (f"[TOOL_CALLS][{WRONG}]", f"[TOOL_CALLS][{FREE}, {WRONG}]", "[TOOL_CALLS][]"):
        assert not strict.takes(text), text
    single = Checker(tokenizer, [WEATHER, CLOCK], False)
    assert single.takes(f"[TOOL_CALLS][{WRONG}]")
    assert not single.takes(f"[TOOL_CALLS][{FREE}, {FREE}]")


@pytest.mark.parametrize("special", [(), ("<|python_tag|>",)])
def test_llama(special: tuple[str, ...]) -> None:
    tokenizer = byte_tokenizer(LLAMA, special)
    right, wrong, free = (one.replace("arguments", "parameters") for one in (RIGHT, WRONG, FREE))
    strict = Checker(tokenizer, [STRICT, CLOCK], None)
    for text in (
        "",
        "No.",
        f"No {wrong}, no call.",
        right,
        f"{right}; {free}",
        f"<|python_tag|>{right}",
        f"So: <|python_tag|>{right}",
    ):
        assert strict.takes(text), text
    for text in (wrong, f"{right}; {wrong}", f"<|python_tag|>{wrong}", '{"a": 1}', " {}"):
        assert not strict.takes(text), text
    single = Checker(tokenizer, [WEATHER, CLOCK], False)
    assert single.takes(wrong)
    assert not single.takes(f"{free}; {free}")


def test_what_the_grammar_takes_the_parser_finds() -> None:
    tokenizer = byte_tokenizer(QWEN)
    checker = Checker(tokenizer, [STRICT, CLOCK], None)
    setup = ToolSetup.from_request([STRICT, CLOCK], None, None, tokenizer, 65536)
    assert setup is not None
    text = f"a\n<tool_call>\n{RIGHT}\n</tool_call>\n<tool_call>\n{FREE}\n</tool_call>"
    assert checker.takes(text)
    content, calls = setup.whole(text)
    assert content == "a"
    assert [one["function"]["name"] for one in calls] == ["get_weather", "clock"]
