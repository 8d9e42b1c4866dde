"""Grammars: what they allow at any position, in any order, and what of them is refused."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from chat_templates import byte_tokenizer
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import SMALL_VOCAB
from tiny import BEGIN_ID, END_ID, tiny_model
from toy_grammar import TOY, A, B, C, D, allowed_after, compiled, compiler

from outpace.errors import OptionError
from outpace.grammar import Grammar, GrammarCompiler, GrammarState, state
from outpace.grammar import compiler as compiling
from outpace.models.tokenizer import Tokenizer
from outpace.params import StructuredOutputsParams

PROMPT = [3, 4, 5]
WIDE = tiny_model(vocab_size=258, seed=1)
SPELL = WIDE.tokenizer
STRANGE = (-1, SMALL_VOCAB, 10**6, 2**40, -(2**70))


def allowed_by(
    state: GrammarState, output: list[int], drafted: Any = (), size: int = SMALL_VOCAB
) -> set[int]:
    logits = np.zeros(size, np.float32)
    state.forbid(logits, [*PROMPT, *output], len(PROMPT), drafted)
    assert set(logits) <= {0.0, -np.inf}
    return set(np.flatnonzero(logits == 0).tolist())


TOKENS = [A, B, B, C, D, D, END_ID, BEGIN_ID, 7, *STRANGE]


def num_valid(output: list[int], drafted: list[int]) -> int:
    """How many of the drafted tokens may come one after the other."""
    for i, token in enumerate(drafted):
        if token not in allowed_after([*output, *drafted[:i]]):
            return i
    return len(drafted)


def test_every_position_has_the_mask_of_its_own_prefix() -> None:
    """Committed tokens grow between steps; within one, positions are asked about in any order."""
    rng = np.random.default_rng(0)
    for _ in range(examples(100)):
        follow_an_output(rng, steps=8)


def follow_an_output(rng: np.random.Generator, steps: int) -> None:
    state, output = TOY.start(), list[int]()
    for _ in range(steps):
        for _ in range(6):
            drafted = [TOKENS[i] for i in rng.integers(len(TOKENS), size=rng.integers(6))]
            if rng.integers(2):  # further along the language than chance would come
                drafted = [token for token in (A, B, C, B, D, END_ID) if rng.integers(4)]
            assert allowed_by(state, output, drafted) == allowed_after([*output, *drafted])
            valid = state.num_allowed([*PROMPT, *output], len(PROMPT), drafted)
            assert valid == num_valid(output, drafted)
        following = sorted(allowed_after(output) - {END_ID, D}) or sorted(allowed_after(output))
        output.append(int(rng.choice(following)))


def test_logits_may_have_more_or_fewer_rows_than_the_tokenizer() -> None:
    state = TOY.start()
    assert allowed_by(state, [A], size=SMALL_VOCAB + 90) == {B, C, D}
    assert allowed_by(state, [A], size=D) == {B, C} - {D}
    assert allowed_by(state, [A, D], size=SMALL_VOCAB + 1) == {END_ID}


def test_positions_behind_an_end_or_a_wrong_token_allow_nothing() -> None:
    state = TOY.start()
    for drafted in ([D, END_ID], [D, END_ID, A], [D, D], [7], [A], [END_ID], [2**40], [-1, B]):
        assert allowed_by(state, [A], drafted) == set()
    assert allowed_by(state, [A], [B, D]) == {END_ID}


def test_answers_have_states_of_their_own() -> None:
    one, other = TOY.start(), TOY.start()
    assert allowed_by(one, [A, D]) == {END_ID}
    assert allowed_by(other, []) == {A}


def test_masks_of_what_was_said_are_let_go() -> None:
    """One is kept for the newest position, whether or not anything was drafted on the way."""
    state, output = TOY.start(), list[int]()
    for token in (A, *[B, C] * 20):
        assert token in allowed_by(state, output)
        output.append(token)
        assert len(state._masks) <= 2


class Counting(list):  # type: ignore[type-arg]
    """Counts the tokens that are read of it."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        self.num_read += len(value) if isinstance(index, slice) else 1
        return value


def test_what_was_compared_once_is_not_compared_again() -> None:
    """A position costs what its draft costs, however long the output is."""
    state, output = TOY.start(), Counting([*PROMPT, A, *[B, C] * 1000])
    logits = np.zeros(SMALL_VOCAB, np.float32)
    state.forbid(logits, output, len(PROMPT), ())
    output.num_read = 0
    for drafted in ([B], [B, C], [C, C, B], [B, C], [D], [7, B]):
        state.forbid(logits, output, len(PROMPT), drafted)
        state.forced(output, len(PROMPT))
        state.num_allowed(output, len(PROMPT), drafted)
    output.append(C)
    state.forbid(logits, output, len(PROMPT), ())
    assert output.num_read <= 2


def test_what_was_changed_behind_its_back_must_be_said() -> None:
    state, output = TOY.start(), [*PROMPT, A, B]
    state.forbid(np.zeros(SMALL_VOCAB, np.float32), output, len(PROMPT), ())
    output[-1:] = [D]
    state.forget()
    assert allowed_by(state, output[len(PROMPT) :]) == {END_ID}


def test_forced_runs() -> None:
    state = compiled(WIDE, choice=["the same, then this", "the same, then that"]).start()
    run = state.forced(PROMPT, len(PROMPT))
    assert SPELL.decode(run) == "the same, then th"
    assert state.forced([*PROMPT, *run], len(PROMPT)) == ()
    state = compiled(WIDE, regex="ab?c").start()
    output = SPELL.encode("abc", add_special_tokens=False)
    assert [state.forced([*PROMPT, *output[:n]], len(PROMPT)) for n in range(4)] == [
        (output[0],),
        (),
        (output[2],),
        (),
    ]


@given(st.lists(st.text('etaoin hé"\\\n/|*{}()', min_size=1, max_size=6), min_size=1, max_size=5))
@settings(max_examples=examples(20))
def test_choices_are_taken_letter_by_letter(choices: list[str]) -> None:
    """Whatever stands in them, nothing is syntax."""
    spelled = {tuple(SPELL.encode(text, add_special_tokens=False)) for text in choices}
    state = compiled(WIDE, choice=choices).start()
    for word in spelled:
        for n in range(len(word) + 1):
            follow = {other[n] for other in spelled if other[:n] == word[:n] and len(other) > n}
            ends = {END_ID} if word[:n] in spelled else set()
            assert allowed_by(state, list(word[:n]), size=258) == follow | ends


NUMBER = {"type": "integer", "minimum": 5, "maximum": 3}
DEEP: dict[str, Any] = {}
for _ in range(5000):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"json": {"type": "strin"}}, "this json cannot be used: Invalid type: strin"),
        ({"json": "{"}, "this json cannot be used: it is no JSON"),
        ({"json": '{"type": "string", "type": "null"}'}, "the key 'type' is given twice"),
        ({"json": "[1]"}, "a schema is a JSON object, got"),
        ({"json": {"const": float("nan")}}, "it is no JSON"),
        ({"json": {"const": {1, 2}}}, "it is no JSON"),
        ({"json": DEEP}, "it is nested too deeply"),
        ({"json": NUMBER}, "minimum"),
        ({"json": {"not": {"type": "string"}}}, r'Unimplemented keys: \["not"\]'),
        ({"json": {"not": {}, "x-guidance": {"lenient": True}}}, "Unimplemented"),
        ({"json": {"$ref": "https://example.com/a.json"}}, "does not fetch"),
        ({"json": {"$ref": "file:///etc/hostname"}}, "does not fetch"),
        ({"json": {"$ref": "#"}}, "this json cannot be used: nothing matches it"),
        ({"regex": r"[^\s\S]"}, "this regex cannot be used: nothing matches it"),
        ({"json": {"enum": ["long " * 30000]}}, r"has 1500\d+ bytes, more than 131072; shorten"),
        ({"json": " " * 200_000}, "has 200000 bytes"),
        ({"regex": "a(b"}, "this regex cannot be used"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "a" * 9000}, "has 9000 bytes, more than 8192"),
        ({"json": {"type": "string", "pattern": f"^{'a?' * 30_000}$"}}, "too big"),
        ({"regex": "\ud800"}, "lone surrogate"),
        ({"grammar": "hello"}, "this grammar cannot be used: Expected ::= at line 1"),
        ({"grammar": 'start: "a'}, "this grammar cannot be used"),
        ({"grammar": 'begin: "a"'}, "this grammar cannot be used"),
        ({"grammar": "root ::= " + "(" * 5000}, "this grammar cannot be used"),
        ({"grammar": "start: " + "(" * 5000}, "nested"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        compiled(WIDE, **asked)
    assert len(str(raised.value)) < 500
    assert "\n" not in str(raised.value)


def test_long_chains_of_rules_do_not_end_the_process() -> None:
    """The library calls itself once for each, which overflows the stack of a usual thread."""
    names = [f"r{i:x}" for i in range(1200)]
    lines = [f"{one}: {next_}" for one, next_ in pairwise(names)]
    grammar = "\n".join([f"start: {names[0]}", *lines, f'{names[-1]}: "a"'])
    state = compiled(WIDE, grammar=grammar).start()
    assert allowed_by(state, [], size=258) == set(SPELL.encode("a", add_special_tokens=False))
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    schema = {"$defs": {**links, "d3000": {"const": 1}}, "$ref": "#/$defs/d0"}
    state = compiled(WIDE, json=schema).start()
    assert allowed_by(state, [], size=258) == set(SPELL.encode("1", add_special_tokens=False))


def test_compiling_can_be_waited_for_only_so_long() -> None:
    properties = {f"p{i}": {"type": "string"} for i in range(1200)}
    asked = StructuredOutputsParams(json={"type": "object", "properties": properties})
    own = compiler(WIDE)
    with pytest.raises(OptionError, match=r"compiling takes longer than 0\.001 s; simplify"):
        own.compile(asked, timeout_s=0.001)
    waiting = [thread for thread in threading.enumerate() if thread.name == "outpace-grammar"]
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()


def test_compiled_grammars_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MAX_CACHED", 3)
    monkeypatch.setattr(compiling, "MAX_CACHED_BYTES", 30)
    own = compiler()

    def of(regex: str) -> Any:
        return own.compile(StructuredOutputsParams(regex=regex))

    first = of("e")
    assert of("e") is first
    assert own.compile(StructuredOutputsParams(choice=["e"])) is not first
    others = [of(regex) for regex in ("t", "a")]
    assert of("t") is others[0]
    assert of("e") is not first
    long = of("(e|t|a|o)*" * 2)
    assert of("(e|t|a|o)*" * 2) is long
    assert of("a") is not others[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"json": {"type": "object"}}, {"json": '{"type": "object"}'}),
        ({"json": {"type": "object"}}, {"json_object": True}),
    ],
)
def test_equal_schemas_are_equal_however_they_are_given(one: Any, other: Any) -> None:
    states = [compiled(WIDE, **asked).start() for asked in (one, other)]
    for text in ("", "{", '{"', "x"):
        output = SPELL.encode(text, add_special_tokens=False)
        first, second = (allowed_by(state, output, size=258) for state in states)
        assert first == second


def test_a_model_without_an_end_is_refused() -> None:
    for ends in ([], [SMALL_VOCAB, -1]):
        own = GrammarCompiler(SPELL.to_json, SMALL_VOCAB, ends)
        with pytest.raises(OptionError, match="needs a model with an end token"):
            own.compile(StructuredOutputsParams(regex="e"))


def test_a_tokenizer_that_the_library_cannot_read_is_refused() -> None:
    own = GrammarCompiler(lambda: "{}", SMALL_VOCAB, [END_ID])
    with pytest.raises(OptionError, match="cannot be had with this model's tokenizer"):
        own.compile(StructuredOutputsParams(regex="e"))


def random_walk(state: GrammarState, letters: str, length: int) -> list[int]:
    """An output that follows the masks and never ends."""
    rng, output = np.random.default_rng(0), list[int]()
    ids = SPELL.encode(letters, add_special_tokens=False)
    for _ in range(length):
        allowed = allowed_by(state, output, size=258)
        output.append(int(rng.choice([token for token in ids if token in allowed])))
    return output


def test_a_full_table_of_states_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is shared by all answers of a grammar: it must not be the end for the next one."""
    monkeypatch.setattr(compiling, "MAX_LEXER_STATES", 600)
    grammar = compiled(WIDE, regex="(e|t)*e(e|t){14}")
    for _ in range(3):
        assert len(random_walk(grammar.start(), "et", 300)) == 300


def test_where_the_library_gives_up_only_the_position_is_lost() -> None:
    hard = 'start: "e" (a | "t" "o")\na: "a" ' + " ".join(['"e"?'] * 1200)  # a wide row of items
    state = compiled(WIDE, grammar=hard).start()
    e, a, t, o = SPELL.encode("eato", add_special_tokens=False)
    for _ in range(2):
        with pytest.raises(
            OptionError, match=r"takes too much work at this place of the answer: .* items"
        ):
            allowed_by(state, [e], [a], size=258)
        assert allowed_by(state, [e], [t], size=258) == {o}
    # Nothing is known of a draft that leads there: it is verified as it is.
    assert state.num_allowed([*PROMPT, e], len(PROMPT), [a, e]) == 2
    assert state.num_allowed([*PROMPT, e], len(PROMPT), [t, e]) == 1


def test_a_table_that_is_always_too_small_is_not_built_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "MAX_LEXER_STATES", 600)
    monkeypatch.setattr(state, "MAX_COMPILED", 1)
    grammar = compiled(WIDE, regex="(e|t)*e(e|t){14}")
    with pytest.raises(OptionError, match=r"takes too much work .*too many states"):
        random_walk(grammar.start(), "et", 3000)


MARKED = byte_tokenizer(None, ("<mark>",), ("<added>",))
"""Beside its end token "<e>": a special token, and one that is none."""


@pytest.mark.parametrize("name", ["<e>", "<mark>"])
@pytest.mark.parametrize(
    ("structure", "text"),
    [
        ({"choice": ["a{}b"]}, "a{}b"),
        ({"regex": "a{}b"}, "a{}b"),
        ({"grammar": 'start: "a{}b"'}, "a{}b"),
        ({"json": {"const": "a{}b"}}, '"a{}b"'),
    ],
)
def test_names_of_special_tokens_are_text_in_a_text(
    structure: dict[str, Any], text: str, name: str
) -> None:
    """Taken for the token, the end token's name would end the answer in the middle."""
    asked = json.loads(json.dumps(structure).replace("{}", name))
    spelled = [MARKED.encode(byte, add_special_tokens=False)[0] for byte in text.format(name)]
    state = compiled_for(MARKED, asked).start()
    assert state.forced(PROMPT, len(PROMPT)) == tuple(spelled)
    for place, token_id in enumerate(spelled):
        allowed = allowed_by(state, spelled[:place], size=MARKED.vocab_size)
        assert allowed == {token_id}
    assert allowed_by(state, spelled, size=MARKED.vocab_size) == set(MARKED.end_token_ids)


def test_special_tokens_can_be_named_in_a_grammar() -> None:
    a, b = (MARKED.encode(letter, add_special_tokens=False)[0] for letter in "ab")
    mark = MARKED.vocab()["<mark>"]
    grammar = 'start: "a" <mark> x // no <mark> here\nx: "b" | /[<]mark>/ | "<mark>"'
    state = compiled_for(MARKED, {"grammar": grammar}).start()
    assert allowed_by(state, [a], size=MARKED.vocab_size) == {mark}
    less = MARKED.encode("<", add_special_tokens=False)[0]
    assert allowed_by(state, [a, mark], size=MARKED.vocab_size) == {b, less}


def compiled_for(tokenizer: Tokenizer, structure: dict[str, Any]) -> Grammar:
    ends = tokenizer.end_token_ids
    compiler = GrammarCompiler(tokenizer.to_json, tokenizer.vocab_size, ends)
    return compiler.compile(StructuredOutputsParams(**structure))


BEYOND = 2**53 + 1
"""The first whole number that is no double."""


@pytest.mark.parametrize(
    "schema",
    [
        {"const": BEYOND},
        {"const": [{"id": -BEYOND}]},
        {"const": 2**63 - 1},
        {"properties": {"id": {"enum": [1, 10**400]}}},
        {"type": "integer", "minimum": BEYOND},
        {"anyOf": [{"type": "integer", "exclusiveMaximum": 10**17 + 1}]},
    ],
)
def test_numbers_that_would_become_others_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"number -?\d+ has more digits than can be kept"):
        compiled(WIDE, json=schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": BEYOND - 1},
        {"const": 10**22},
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1, "default": BEYOND},
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    ],
)
def test_numbers_that_can_be_kept_are_taken(schema: dict[str, Any]) -> None:
    state = compiled(WIDE, json=schema).start()
    whole = str(schema.get("const", 2**63 - 1))
    output = SPELL.encode(whole, add_special_tokens=False)
    assert END_ID in allowed_by(state, output, size=258)
