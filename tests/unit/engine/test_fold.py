"""The output fold against a reference that knows all tokens and looks at one at a time."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.engine.fold import IncrementalDecoder, OutputFold, find_first_stop, len_possible_stop
from outpace.outputs import Logprob
from outpace.params import SamplingParams

VECTORS = Path(__file__).parents[2] / "vectors" / "stop_vectors.json"
EOS, PAD = 256, 257
MERGES = (" the", "ab", "aba", "é", "\N{GRINNING FACE}x", "stop", "\N{REPLACEMENT CHARACTER}")
SPLIT_MERGES = (b" caf\xc3", b"\xa9!", b"\xf0\x9f", b"\x98\x80y", b"\x80\x80")


class ByteTokenizer:
    """Ids 0-255 are bytes, 256 and 257 special, then longer pieces, some cut mid-character."""

    def __init__(self) -> None:
        pieces = [bytes([i]) for i in range(256)] + [b"<eos>", b"<pad>"]
        self.pieces = pieces + [text.encode() for text in MERGES] + list(SPLIT_MERGES)
        self.num_decoded = 0

    def decode(self, ids: list[int], /, skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(ids)
        kept = [i for i in ids if not (skip_special_tokens and i in (EOS, PAD))]
        return b"".join(self.pieces[i] for i in kept).decode("utf-8", errors="replace")


class LeadingSpaceTokenizer:
    """Marks word starts and strips the first one of each call, as SentencePiece models do."""

    pieces = ("▁", "▁a", "b", "▁▁", "c")

    def decode(self, ids: list[int], /, skip_special_tokens: bool = True) -> str:
        text = "".join(self.pieces[i] for i in ids).replace("▁", " ")
        return text.removeprefix(" ")


TOKENIZER = ByteTokenizer()
token_ids = st.integers(0, len(TOKENIZER.pieces) - 1)
# Mostly bytes that meet in interesting ways: lead and continuation bytes, specials, long pieces.
spiky_ids = st.one_of(
    st.sampled_from([0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0x41, EOS, PAD]),
    token_ids,
)


def make_fold(max_tokens: int = 1000, **params: object) -> OutputFold:
    return OutputFold(TOKENIZER, SamplingParams(**params), frozenset({EOS}), max_tokens)


def run(fold: OutputFold, ids: list[int], block_lens: tuple[int, ...] = (1,)) -> list[str]:
    """Push ids until the end; a delta is taken after each block, the lengths used in rotation."""
    deltas, position, turn = [], 0, 0
    while position < len(ids) and fold.finish_reason is None:
        for token_id in ids[position : position + block_lens[turn % len(block_lens)]]:
            if fold.push(token_id, {}):
                break
        position += block_lens[turn % len(block_lens)]
        turn += 1
        deltas.append(fold.take_delta())
    return deltas


def encode(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("case", json.loads(VECTORS.read_text()), ids=lambda c: str(c["kept"]))
def test_stop_vectors(case: dict) -> None:
    fold = OutputFold(
        TOKENIZER, SamplingParams(), frozenset({case["eos"]}), max_tokens=case["max_tokens"]
    )
    run(fold, case["committed"], (len(case["committed"]),))
    assert fold.token_ids == case["kept"]
    assert fold.finish_reason == case["reason"]


@pytest.mark.parametrize("block_len", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("as_stop_token", [False, True])
def test_every_pair_of_stop_position_and_cap(block_len: int, as_stop_token: bool) -> None:
    """The brute force of the first-event rule: a loop over single tokens, nothing else."""
    for stop_at in range(9):
        for cap in range(1, 10):
            ids = [*encode("abcdefgh"), ord("i")]
            ids[stop_at] = ord("Z") if as_stop_token else EOS
            params = {"stop_token_ids": (ord("Z"),)} if as_stop_token else {}
            fold = make_fold(cap, logprobs=0, **params)
            deltas = run(fold, ids, (block_len,))

            kept, reason, stop_reason = [], None, None
            for token_id in ids:
                kept.append(token_id)
                if token_id == ids[stop_at]:
                    reason, stop_reason = "stop", token_id if as_stop_token else None
                    break
                if len(kept) == cap:
                    reason = "length"
                    break
            assert (fold.token_ids, fold.finish_reason) == (kept, reason)
            assert fold.stop_reason == stop_reason
            shown = kept[:-1] if reason == "stop" else kept
            assert fold.text == "".join(deltas) == TOKENIZER.decode(shown)
            assert fold.logprobs is not None
            assert len(fold.logprobs) == len(kept)


@pytest.mark.parametrize("block_len", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("keep", [False, True])
def test_stop_string_at_every_offset_straddling_steps(
    block_len: int, offset: int, keep: bool
) -> None:
    stop = " ha ha"
    text = "x" * offset + stop + " tail that must not be seen"
    fold = make_fold(stop=stop, include_stop_str_in_output=keep)
    deltas = run(fold, encode(text), (block_len,))
    assert fold.text == "".join(deltas) == "x" * offset + (stop if keep else "")
    assert fold.token_ids == encode("x" * offset + stop)
    assert (fold.finish_reason, fold.stop_reason) == ("stop", stop)


def test_stop_string_inside_one_token_and_at_the_cap() -> None:
    piece = TOKENIZER.pieces.index(b"stop")
    fold = make_fold(3, stop=["top", "to"])
    deltas = run(fold, [ord("a"), ord("b"), piece, ord("c")])
    assert fold.text == "".join(deltas) == "abs"
    assert fold.token_ids == [ord("a"), ord("b"), piece]
    assert (fold.finish_reason, fold.stop_reason) == ("stop", "to")


def test_near_miss_is_released() -> None:
    fold = make_fold(stop="aab")
    deltas = run(fold, encode("aaac"))
    assert deltas == ["", "", "a", "aac"]
    assert fold.finish_reason is None


def test_held_text_is_released_at_the_length_limit_and_on_abort() -> None:
    fold = make_fold(3, stop="abcd")
    assert run(fold, encode("abcd")) == ["", "", "abc"]
    assert fold.finish_reason == "length"
    fold = make_fold(stop="abcd")
    assert run(fold, [*encode("ab"), 0xC3]) == ["", "", ""]
    fold.abort()
    assert fold.take_delta() == "ab\N{REPLACEMENT CHARACTER}" == fold.text
    assert fold.finish_reason == "abort"


def test_the_first_reason_stands() -> None:
    fold = make_fold(1)
    fold.push(ord("a"))
    fold.abort()
    assert fold.finish_reason == "length"
    with pytest.raises(AssertionError):
        fold.push(ord("b"))


def test_stop_at_the_cap_beats_the_cap() -> None:
    fold = make_fold(2, stop="b")
    run(fold, encode("ab"))
    assert fold.finish_reason == "stop"
    fold = make_fold(2)
    run(fold, [ord("a"), EOS])
    assert (fold.finish_reason, fold.token_ids) == ("stop", [ord("a"), EOS])


def test_ignore_eos_ignores_only_end_tokens() -> None:
    fold = make_fold(4, ignore_eos=True)
    run(fold, [ord("a"), EOS, ord("b"), EOS, ord("c")])
    assert (fold.text, fold.finish_reason) == ("ab", "length")
    fold = make_fold(9, ignore_eos=True, stop_token_ids=[EOS])
    run(fold, [ord("a"), EOS, ord("b")])
    assert (fold.token_ids, fold.stop_reason) == ([ord("a"), EOS], EOS)
    fold = make_fold(9, ignore_eos=True, stop="b")
    run(fold, [ord("a"), EOS, ord("b"), ord("c")])
    assert (fold.text, fold.stop_reason) == ("a", "b")


@pytest.mark.parametrize(("keep", "text"), [(False, "a"), (True, "aZ")])
def test_text_of_an_ordinary_stop_token(keep: bool, text: str) -> None:
    fold = make_fold(stop_token_ids=[ord("Z")], include_stop_str_in_output=keep)
    run(fold, encode("aZb"))
    assert fold.text == text
    assert fold.token_ids == encode("aZ")


@pytest.mark.parametrize(("keep", "text"), [(False, "a"), (True, "a<eos>")])
def test_end_token_with_special_tokens_shown(keep: bool, text: str) -> None:
    fold = make_fold(skip_special_tokens=False, include_stop_str_in_output=keep)
    run(fold, [ord("a"), EOS])
    assert fold.text == text


def test_stop_string_across_a_skipped_special_token() -> None:
    fold = make_fold(stop="ab")
    run(fold, [ord("a"), PAD, ord("b"), ord("c")])
    assert (fold.text, fold.token_ids) == ("", [ord("a"), PAD, ord("b")])


def test_logprobs_follow_the_tokens() -> None:
    rows = [{i: Logprob(-0.5 * i, 1, "")} for i in range(4)]
    fold = make_fold(logprobs=0, stop="c")
    for token_id, row in zip(encode("abc"), rows, strict=False):
        fold.push(token_id, row)
    assert fold.logprobs == rows[:3]
    assert make_fold().logprobs is None


@given(st.lists(spiky_ids, max_size=60), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_joined_deltas_equal_the_decoded_whole(ids: list[int], block_lens: list[int]) -> None:
    fold = make_fold(max(1, len(ids)), ignore_eos=True)
    deltas = run(fold, ids, tuple(block_lens))
    fold.finish("length")
    deltas.append(fold.take_delta())
    assert "".join(deltas) == fold.text == TOKENIZER.decode(ids)
    assert fold.token_ids == ids


@given(st.lists(spiky_ids, max_size=60), st.booleans())
def test_no_delta_is_ever_taken_back(ids: list[int], skip: bool) -> None:
    """What is shown after each token is a prefix of the final text, at most 3 characters short."""
    decoder = IncrementalDecoder(TOKENIZER, skip)
    shown, whole = "", TOKENIZER.decode(ids, skip_special_tokens=skip)
    for position, token_id in enumerate(ids, 1):
        shown += decoder.push(token_id)
        assert whole.startswith(shown)
        assert len(TOKENIZER.decode(ids[:position], skip_special_tokens=skip)) - len(shown) <= 3
    assert shown + decoder.flush() == whole


@given(st.text(max_size=40))
def test_valid_text_is_shown_as_soon_as_its_characters_are_complete(text: str) -> None:
    decoder = IncrementalDecoder(TOKENIZER)
    for char in text.replace("\N{REPLACEMENT CHARACTER}", ""):
        assert "".join(decoder.push(byte) for byte in char.encode()) == char


@given(st.lists(st.integers(0, 4), max_size=20))
def test_decoders_that_strip_the_first_space(ids: list[int]) -> None:
    tokenizer = LeadingSpaceTokenizer()
    decoder = IncrementalDecoder(tokenizer)
    joined = "".join(decoder.push(i) for i in ids) + decoder.flush()
    assert joined == tokenizer.decode(ids)


@pytest.mark.model
def test_the_default_models_tokenizer() -> None:
    from outpace.models.hub.names import resolve
    from outpace.models.open import open_checkpoint

    tokenizer = open_checkpoint(resolve("smollm2-135m")).tokenizer()
    draw = random.Random(0)
    for _ in range(20):
        ids = [draw.randrange(tokenizer.vocab_size) for _ in range(300)]
        fold = OutputFold(tokenizer, SamplingParams(), frozenset(), len(ids))
        deltas = run(fold, ids, (1, 4, 2))
        assert "".join(deltas) == fold.text == tokenizer.decode(ids)


small_text = st.text("ab€", max_size=14)
stop_strings = st.lists(st.text("ab€", min_size=1, max_size=4), min_size=1, max_size=3)


@given(small_text, stop_strings, st.integers(1, 5), st.booleans(), st.integers(1, 30))
@settings(max_examples=300)
def test_stop_strings_against_a_search_of_every_prefix(
    text: str, stops: list[str], block_len: int, keep: bool, cap: int
) -> None:
    ids = encode(text)
    fold = make_fold(cap, stop=stops, include_stop_str_in_output=keep, ignore_eos=True)
    deltas = run(fold, ids, (block_len,))
    if fold.finish_reason is None:
        fold.finish("length")
        deltas.append(fold.take_delta())
    expected = _stop_oracle(ids[:cap], stops, keep)
    assert (fold.text, fold.token_ids, fold.stop_reason) == expected
    assert "".join(deltas) == fold.text
    assert fold.finish_reason == ("length" if expected[2] is None else "stop")


@given(small_text, stop_strings, st.integers(1, 5), st.booleans(), st.integers(0, 12))
@settings(max_examples=300)
def test_stop_strings_that_come_too_early_against_a_search_of_every_prefix(
    text: str, stops: list[str], block_len: int, keep: bool, min_tokens: int
) -> None:
    ids = encode(text)
    fold = make_fold(stop=stops, include_stop_str_in_output=keep, min_tokens=min_tokens)
    deltas = run(fold, ids, (block_len,))
    if fold.finish_reason is None:
        fold.abort()
        deltas.append(fold.take_delta())
    assert (fold.text, fold.token_ids, fold.stop_reason) == _stop_oracle(
        ids, stops, keep, min_tokens
    )
    assert "".join(deltas) == fold.text


@pytest.mark.parametrize("min_tokens", range(6))
def test_nothing_stops_the_output_up_to_min_tokens(min_tokens: int) -> None:
    """The first token that may end it is number min_tokens + 1, whatever ends it."""
    fold = make_fold(min_tokens=min_tokens, stop_token_ids=[ord("Z")])
    run(fold, [EOS, ord("Z"), EOS, ord("Z"), EOS, ord("Z"), EOS])
    assert len(fold.token_ids) == min_tokens + 1
    fold = make_fold(min_tokens=min_tokens, stop="a")
    run(fold, encode("aaaaaaaa"))
    assert (len(fold.token_ids), fold.text) == (min_tokens + 1, "a" * min_tokens)
    fold = make_fold(min_tokens=min_tokens, stop="aa")
    run(fold, encode("aaaaaaaa"))
    assert len(fold.token_ids) == max(min_tokens + 1, 2)


def test_the_length_limit_does_not_wait_for_min_tokens() -> None:
    """The context may leave less room than was asked for."""
    fold = make_fold(2, min_tokens=5)
    run(fold, [EOS, EOS, EOS])
    assert (len(fold.token_ids), fold.finish_reason) == (2, "length")


def _stop_oracle(
    ids: list[int], stops: list[str], keep: bool, min_tokens: int = 0
) -> tuple[str, list[int], str | None]:
    """Grow the text character by character; the first that ends with a stop string is cut."""
    text = TOKENIZER.decode(ids)
    for end in range(1, len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        num_tokens = len(text[:end].encode())
        if matching and num_tokens > min_tokens:
            stop = max(matching, key=len)
            return text[: end if keep else end - len(stop)], ids[:num_tokens], stop
    return text, ids, None


@given(small_text, stop_strings)
def test_search_helpers_against_brute_force(text: str, stops: list[str]) -> None:
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    assert find_first_stop(text, stops) == ((min(ends)[1], min(ends)[2]) if ends else None)
    possible = [k for s in stops for k in range(1, len(s)) if text.endswith(s[:k])]
    assert len_possible_stop(text, stops) == max(possible, default=0)


@pytest.mark.parametrize(
    "pattern", [b"plain text ", b"\xff", b"\xe2", b"\x80", "€".encode(), b"\xf0\x9f"]
)
def test_work_per_token_does_not_grow(pattern: bytes) -> None:
    """Counts decoded ids, not time: the window stays bounded, invalid bytes included."""
    tokenizer = ByteTokenizer()
    decoder = IncrementalDecoder(tokenizer)
    ids = list(pattern) * (3000 // len(pattern))
    for token_id in ids:
        decoder.push(token_id)
    assert tokenizer.num_decoded < 60 * len(ids)


def test_work_per_token_does_not_grow_over_skipped_tokens() -> None:
    tokenizer = ByteTokenizer()
    decoder = IncrementalDecoder(tokenizer)
    for token_id in [0xF0] + [EOS] * 3000:
        decoder.push(token_id)
    assert tokenizer.num_decoded < 10 * 3000
