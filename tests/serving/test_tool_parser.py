"""Calls out of text: what is one, what is none, and that it does not matter how the text came."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.serving.tools import ArgumentsDelta, ContentDelta, ToolCallStart, ToolEvent, ToolParser
from outpace.serving.tools.header import MAX_LENGTH
from outpace.serving.tools.syntax import HERMES, LLAMA3, MISTRAL, Syntax, constrained

REQUIRED = constrained(HERMES)
SYNTAXES = {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL, "required": REQUIRED}
NAMES = ("f", "get_weather", "get")


def joined(events: Iterable[ToolEvent]) -> tuple[str, list[tuple[str, str]]]:
    """(content, [(name, arguments)]), after a check that the events come in order."""
    content, calls = "", []
    for event in events:
        if isinstance(event, ContentDelta):
            assert event.text
            content += event.text
        elif isinstance(event, ToolCallStart):
            assert event.index == len(calls)
            calls.append([event.name, ""])
        else:
            assert event.text
            assert event.index == len(calls) - 1
            calls[-1][1] += event.text
    return content, [(name, arguments) for name, arguments in calls]


def parse(
    syntax: Syntax, deltas: Iterable[str], only: str = ""
) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolParser(syntax, NAMES, only)
    events = [event for delta in deltas for event in parser.feed(delta)]
    found = joined([*events, *parser.finish()])
    assert parser.num_calls == len(found[1])
    return found


F = '{"name": "f", "arguments": {}}'
G = '{"name":"get_weather","parameters":{"city": "Kö<tool_call>ln \\"}", "n": [1, {"a": "]"}]}}'
G_ARGUMENTS = '{"city": "Kö<tool_call>ln \\"}", "n": [1, {"a": "]"}]}'

# Syntax, text, content (None: the text), calls.
CASES: list[tuple[str, str, str | None, list[tuple[str, str]]]] = [
    ("hermes", "", "", []),
    ("hermes", " Hi.\n ", " Hi.\n ", []),
    ("hermes", f"<tool_call>\n{F}\n</tool_call>", "", [("f", "{}")]),
    ("hermes", f"<tool_call>{F}</tool_call>", "", [("f", "{}")]),
    ("hermes", f"Let me see.\n<tool_call>{F}</tool_call>\n", "Let me see.", [("f", "{}")]),
    (
        "hermes",
        f"One<tool_call>\n{F}\n</tool_call>\ntwo\n<tool_call>\n{G}\n</tool_call> three ",
        "One\ntwo\n three",
        [("f", "{}"), ("get_weather", G_ARGUMENTS)],
    ),
    ("hermes", f"<tool_call>{F}<tool_call>{F}</tool_call>", "", [("f", "{}"), ("f", "{}")]),
    ("hermes", f"<tool_call>{F}", "", [("f", "{}")]),
    ("hermes", f"<tool_call>{F}\n</tool_c", "", [("f", "{}")]),
    ("hermes", f"<tool_call>{F[:-1]}</tool_call>.", ".", [("f", "{}")]),
    ("hermes", f"<tool_call>{F}}}</tool_call>", "}</tool_call>", [("f", "{}")]),
    ("hermes", f"<tool_call>{F} so <tool_call>{F}</tool_call>", " so", [("f", "{}")] * 2),
    (
        "hermes",
        '<tool_call>{"id": "a\\"b", "type": "function", "name": "f", "arguments": {"x": 1}}',
        "",
        [("f", '{"x": 1}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"x": 1}, "id": "a}"}</tool_call>',
        "",
        [("f", '{"x": 1}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}, "why": "so"}</tool_call>',
        ', "why": "so"}</tool_call>',
        [("f", "{}")],
    ),
    # arguments as the model wrote them: cut off, or no JSON
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}', "", [("f", '{"a": }')]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "\\',
        "",
        [("f", '{"a": "\\')],
    ),
    # no calls
    (
        "hermes",
        "a < b <tool <tool_calls> </tool_call>",
        "a < b <tool <tool_calls> </tool_call>",
        [],
    ),
    ("hermes", "<tool_call>", "<tool_call>", []),
    ("hermes", "<tool_call", "<tool_call", []),
    ("hermes", "<tool_call>\n", "<tool_call>\n", []),
    ("hermes", '<tool_call>{"name": "g', '<tool_call>{"name": "g', []),
    ("hermes", '<tool_call>{"name": "ge"}', '<tool_call>{"name": "ge"}', []),
    ("hermes", '<tool_call>{"name": "F", "arguments": {}}', None, []),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}', None, []),
    ("hermes", '<tool_call>{"arguments": {}, "name": "f"}', None, []),
    ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}", None, []),
    ("hermes", "<tool_call>\n[" + F + "]\n</tool_call>", None, []),
    ("hermes", F, F, []),
    ("hermes", f"<tool_call> no <tool_call>{F}</tool_call>", "<tool_call> no", [("f", "{}")]),
    ("hermes", f"<tool_call><tool_call>{F}", "<tool_call>", [("f", "{}")]),
    ("llama3", F, "", [("f", "{}")]),
    ("llama3", f" \n{G} ", "", [("get_weather", G_ARGUMENTS)]),
    ("llama3", f"{F}; {G}", "", [("f", "{}"), ("get_weather", G_ARGUMENTS)]),
    ("llama3", f"{F}\n{F}", "", [("f", "{}"), ("f", "{}")]),
    ("llama3", f"{F};", ";", [("f", "{}")]),
    ("llama3", f"{F}; and", "; and", [("f", "{}")]),
    ("llama3", f"{F} and", " and", [("f", "{}")]),
    ("llama3", f"<|python_tag|>{F}", "", [("f", "{}")]),
    ("llama3", f"Well: <|python_tag|>{F};{F}", "Well:", [("f", "{}"), ("f", "{}")]),
    ("llama3", f"{F}<|python_tag|>{F}", "", [("f", "{}"), ("f", "{}")]),
    ("llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("llama3", f"Well: {F}", f"Well: {F}", []),
    ("llama3", ' {"name": "Bob", "parameters": {}} ', ' {"name": "Bob", "parameters": {}} ', []),
    ("llama3", '{"nam', '{"nam', []),
    ("llama3", " \n ", " \n ", []),
    ("mistral", f"[TOOL_CALLS][{F}]", "", [("f", "{}")]),
    ("mistral", f"[TOOL_CALLS] [ {F} , {G} ] ", "", [("f", "{}"), ("get_weather", G_ARGUMENTS)]),
    ("mistral", f"Yes. [TOOL_CALLS][{F}] Done.", "Yes.  Done.", [("f", "{}")]),
    ("mistral", f"[TOOL_CALLS][{F}", "", [("f", "{}")]),
    ("mistral", f"[TOOL_CALLS][{F}, ", ",", [("f", "{}")]),
    ("mistral", f"[TOOL_CALLS][{F}, x]", ", x]", [("f", "{}")]),
    ("mistral", f"[TOOL_CALLS]{F}", f"[TOOL_CALLS]{F}", []),
    ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ("mistral", "[TOOL", "[TOOL", []),
    ("required", f"[{F}]", "", [("f", "{}")]),
    ("required", f"[{F},{G}]", "", [("f", "{}"), ("get_weather", G_ARGUMENTS)]),
    ("required", f"[{F[:-2]}", "", [("f", "{")]),
    ("required", '[{"name": "f"', '[{"name": "f"', []),
    ("required", "no", "no", []),
]
IDS = [f"{name}-{text[:60]}" for name, text, _, _ in CASES]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES, ids=IDS)
def test_what_is_a_call(name: str, text: str, content: str | None, calls: list[Any]) -> None:
    expected = (text if content is None else content, calls)
    syntax = SYNTAXES[name]
    assert parse(syntax, [text]) == expected
    assert parse(syntax, text) == expected, "character by character"
    for places in itertools.combinations(range(len(text) + 1), 2):
        if len(text) <= 50 or places[0] % 9 == 0:
            assert parse(syntax, cut(text, places)) == expected, f"cut at {places}"


def cut(text: str, places: Iterable[int]) -> Iterator[str]:
    bounds = [0, *sorted(places), len(text)]
    return (text[start:end] for start, end in itertools.pairwise(bounds))


TINY = Syntax("<c>", "</c>")
TINY_CASES = ["a <c> <c", "<c>{}</c>", ' <c>{"name"', "<<c>>  <c ", '<c>{"n": "', "a\n \n<c> b\n"]


@pytest.mark.parametrize("text", TINY_CASES)
def test_every_way_of_cutting_a_short_text(text: str) -> None:
    whole = parse(TINY, [text])
    places = range(1, len(text))
    for number in range(len(text)):
        for chosen in itertools.combinations(places, number):
            assert parse(TINY, cut(text, chosen)) == whole


# All kinds of half-finished, nested and repeated syntax.
PIECES = [
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "[",
        "]",
        "{",
        "}",
        ",",
        ";",
    ),
    *(F, G, '{"name": "f", "arguments": {', '"', "\\", '\\"', "<", "\n", " ", ":", "é", "\u2028"),
    *('"name"', ": ", '"f"', ', "arguments": ', "text", ', "id": "x"', "🙂", "\x00", "\ufffd"),
]


@given(
    pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=14),
    sizes=st.lists(st.integers(1, 9), min_size=1),
    name=st.sampled_from(sorted(SYNTAXES)),
    only=st.sampled_from(["", "f"]),
)
def test_any_text_cut_in_any_way(pieces: list[str], sizes: list[int], name: str, only: str) -> None:
    text, deltas, place = "".join(pieces), [], 0
    for size in itertools.cycle(sizes):
        if place >= len(text):
            break
        deltas.append(text[place : place + size])
        place += size
    content, calls = parse(SYNTAXES[name], [text], only)
    assert parse(SYNTAXES[name], deltas, only) == (content, calls)
    # Nothing is made up, and nothing but a call's own syntax goes missing.
    left = text
    characters = iter(text)
    assert all(character in characters for character in content)
    for called, arguments in calls:
        assert called in NAMES
        assert arguments in left
        left = left[left.index(arguments) + len(arguments) :]
    told = content + "".join(arguments for _, arguments in calls)
    assert all(told.count(one) == text.count(one) for one in ("🙂", "é", "text"))
    if not calls:
        assert content == text


def test_text_is_held_back_no_longer_than_it_must_be() -> None:
    parser = ToolParser(HERMES, NAMES)
    shown = []
    for delta in ["a", " ", "b <", "tool", "_box> ", "<tool_call>", '{"name": "f"', ', "argum']:
        shown.append([event.as_delta() for event in parser.feed(delta)])
    texts = ["".join(one["content"] for one in events) for events in shown]
    assert texts == ["a", "", " b", "", " <tool_box>", "", "", ""]
    start, *rest = parser.feed('ents": {"x"')
    assert isinstance(start, ToolCallStart)
    assert rest == [ArgumentsDelta(0, '{"x"')]
    assert parser.feed(": 1") == [ArgumentsDelta(0, ": 1")]
    assert parser.feed("}") == [ArgumentsDelta(0, "}")]
    assert parser.feed("}\n</tool_call>") == []
    assert parser.finish() == []


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "required"])
def test_what_cannot_become_a_call_is_shown_at_once(name: str) -> None:
    syntax = SYNTAXES[name]
    lead = syntax.opener + ("[" if syntax.is_list else "")
    for start in ('{"colour', '{"name": "h', "{'", '{"name": 5', '{"name": "f", "arguments": 5'):
        text = lead + start
        assert parser_content(ToolParser(syntax, NAMES), text) == text


def parser_content(parser: ToolParser, text: str) -> str:
    return joined(parser.feed(text))[0]


def test_a_header_has_a_greatest_length() -> None:
    for filler in (" " * MAX_LENGTH, '"id": "' + "x" * MAX_LENGTH):
        text = "<tool_call>{" + filler
        assert parser_content(ToolParser(HERMES, NAMES), text) == text.rstrip()
        assert parse(HERMES, text) == (text, [])


def test_ids() -> None:
    ids = set()
    for syntax, shape in ((HERMES, r"call_[A-Za-z0-9]{24}"), (MISTRAL, r"[A-Za-z0-9]{9}")):
        lead = syntax.opener + ("[" if syntax.is_list else "")
        for _ in range(20):
            event, _ = ToolParser(syntax, NAMES).feed(lead + F[:-1])
            assert isinstance(event, ToolCallStart)
            assert re.fullmatch(shape, event.id)
            ids.add(event.id)
    assert len(ids) == 40


def test_arguments_alone() -> None:
    text = '{"a": "<tool_call>"}'
    for deltas in ([text], list(text)):
        assert parse(HERMES, deltas, "f") == ("", [("f", text)])
    assert parse(HERMES, [], "f") == ("", [])


def test_deltas_in_openais_shape() -> None:
    parser = ToolParser(HERMES, NAMES)
    content, start, arguments = parser.feed('Hm. <tool_call>{"name": "f", "arguments": {')
    assert isinstance(start, ToolCallStart)
    assert content.as_delta() == {"content": "Hm."}
    assert start.as_delta()["tool_calls"] == [
        {
            "index": 0,
            "id": start.id,
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        }
    ]
    assert arguments.as_delta() == {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 3000,
        "[TOOL_CALLS][" * 3000,
        "<tool_call>" + "{" * 20000,
        "[TOOL_CALLS]" + "[" * 20000,
        '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 20000,
        '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 20000 + "1" + "}" * 20001,
        '{"name": "f", "parameters": {"a": "' + "\\" * 20000,
        " " * 20000 + "{",
        "<tool_call>" + " " * 20000,
        "a " * 20000,
    ],
    ids=lambda text: text[:30],
)
def test_hostile_text_is_only_text(text: str) -> None:
    for syntax in (HERMES, LLAMA3, MISTRAL):
        whole = parse(syntax, [text])
        assert parse(syntax, cut(text, range(0, len(text), 64))) == whole
        assert sum(map(len, [whole[0], *(arguments for _, arguments in whole[1])])) > 0


def test_the_comparison_can_fail() -> None:
    """A parser that treats every delta by itself must not pass for one that does not."""
    text = f"<tool_call>{F}</tool_call>"
    apart = [event for part in cut(text, [5]) for event in parse_alone(part)]
    assert joined(apart) != parse(HERMES, [text])
    assert json.loads(parse(HERMES, [text])[1][0][1]) == {}


def parse_alone(text: str) -> list[ToolEvent]:
    parser = ToolParser(HERMES, NAMES)
    return [*parser.feed(text), *parser.finish()]
