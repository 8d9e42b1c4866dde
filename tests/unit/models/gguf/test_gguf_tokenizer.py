"""The tokenizer in a GGUF file: rules by name, and what cannot be exact is refused."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_files import tokenizer_from_gguf as from_gguf
from model_files import tokenizer_metadata, vocabulary

from outpace.errors import ModelError
from outpace.models.tokenizer import Tokenizer


def test_rows_without_a_token_decode_to_nothing() -> None:
    tokenizer = from_gguf()
    assert "[PAD263]" not in tokenizer.vocab()
    assert tokenizer.token_text(263) == tokenizer.token_text(10**6) == ""


def test_beginning_and_end_tokens_as_the_file_says() -> None:
    text = "hello"
    plain = from_gguf().encode(text)
    begun = from_gguf(add_bos_token=True)
    assert begun.encode(text) == [1, *plain]
    assert begun.encode(text, add_special_tokens=False) == plain
    assert from_gguf(add_bos_token=True, add_eos_token=True).encode(text) == [1, *plain, 0]
    unsaid = tokenizer_metadata(pre="llama-bpe")
    del unsaid["tokenizer.ggml.add_bos_token"]
    assert Tokenizer.from_gguf(unsaid).encode(text)[0] == 1


def test_end_tokens_of_gguf() -> None:
    assert from_gguf(eot_token_id=1).end_token_ids == {0, 1}
    assert from_gguf(eom_token_id=2).end_token_ids == {0, 2}
    assert from_gguf(eos_token_id=None).end_token_ids == frozenset()


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["x", "Ġ", "Ġ123", "ĊĊ", "Ġa", "'", "LL"]),
        ("olmo", ["x", "Ġ", "Ġ123", "ĊĊ", "Ġa", "'", "LL"]),
        ("llama3", ["x", "Ġ", "Ġ", "123", "ĊĊ", "Ġa", "'LL"]),
        ("llama-v3", ["x", "Ġ", "Ġ", "123", "ĊĊ", "Ġa", "'LL"]),
        ("smaug-bpe", ["x", "Ġ", "Ġ", "123", "ĊĊ", "Ġa", "'LL"]),
        ("dbrx", ["x", "Ġ", "Ġ", "123", "ĊĊ", "Ġa", "'LL"]),
        ("stablelm2", ["x", "Ġ", "Ġ", "1", "2", "3", "ĊĊ", "Ġa", "'LL"]),
        ("tekken", ["x", "Ġ", "Ġ", "1", "2", "3", "ĊĊ", "Ġa", "'LL"]),
        ("gpt-4o", ["x", "Ġ", "Ġ", "123", "ĊĊ", "Ġa'LL"]),
        ("smollm", ["x", "ĠĠ", "1", "2", "3", "ĊĊ", "Ġa", "'", "LL"]),
        ("llama-bpe", ["x", "Ġ", "Ġ", "123", "ĊĊ", "Ġa", "'LL"]),
        ("qwen2", ["x", "Ġ", "Ġ", "1", "2", "3", "ĊĊ", "Ġa", "'LL"]),
    ],
)
def test_pre_tokenizers_split_as_published(pre: str, pieces: list[str]) -> None:
    # All pieces are made tokens and all merges allowed, so that only the split keeps them apart.
    tokens, kinds, _ = vocabulary()
    merges = []
    spelled = "xĠĠ123ĊĊĠa'LL"
    known = set(tokens)
    for length in range(2, len(spelled) + 1):
        for start in range(len(spelled) - length + 1):
            piece = spelled[start : start + length]
            merges += [f"{piece[:cut]} {piece[cut:]}" for cut in range(1, length)]
            if piece not in known:
                known.add(piece)
                tokens.append(piece)
    kinds += [1] * (len(tokens) - len(kinds))
    text = spelled.replace("Ġ", " ").replace("Ċ", "\n")
    tokenizer = from_gguf(pre=pre, tokens=tokens, token_type=kinds, merges=merges)
    spelling = {token_id: token for token, token_id in tokenizer.vocab().items()}
    found = [spelling[token_id] for token_id in tokenizer.encode(text, False)]
    assert found == pieces


def test_qwen2_normalises() -> None:
    assert from_gguf(pre="qwen2").encode("e\u0301") == from_gguf(pre="qwen2").encode("é")
    assert from_gguf().encode("e\u0301") != from_gguf().encode("é")


def test_llama_takes_a_whole_token_without_merging() -> None:
    tokens, kinds, merges = vocabulary()
    tokens, kinds = [*tokens, "xyz"], [*kinds, 1]
    assert from_gguf(pre="llama-bpe", tokens=tokens, token_type=kinds, merges=merges).encode(
        "xyz", add_special_tokens=False
    ) == [264]
    assert len(from_gguf(tokens=tokens, token_type=kinds, merges=merges).encode("xyz")) == 3


def test_where_case_changes_some_splits_end_a_word() -> None:
    tokens, kinds, _ = vocabulary()
    text = "aBc"
    tokens, kinds = [*tokens, "aB", "Bc", "aBc"], [*kinds, 1, 1, 1]
    changed = {"tokens": tokens, "token_type": kinds, "merges": ["a B", "B c", "a Bc", "aB c"]}
    for pre, count in {"tekken": 2, "gpt-4o": 2, "llama-bpe": 1, "gpt-2": 1}.items():
        assert len(from_gguf(pre=pre, **changed).encode(text, False)) == count
    assert len(from_gguf(pre="gpt-4o", **changed).encode("aBc's", False)) == 4
    assert len(from_gguf(pre="tekken", **changed).encode("aBc's", False)) == 4


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "t5"}, r"tokenizer kind 't5' is not supported; supported: 'gpt2' .*'llama'"),
    ({"model": "bert"}, r"tokenizer kind 'bert' is not supported"),
    ({"model": ["gpt2"]}, r"tokenizer kind \['gpt2'\]"),
    ({"pre": "default"}, r"pre-tokenizer 'default' is not supported"),
    ({"pre": ["gpt-2"]}, r"pre-tokenizer \['gpt-2'\]"),
    ({"model": None}, r"tokenizer kind None"),
    ({"pre": "deepseek-llm"}, r"pre-tokenizer 'deepseek-llm' is not supported; supported: gpt-2"),
    ({"pre": None}, r"pre-tokenizer None"),
    ({"tokens": None}, r"tokens must be a list of str"),
    ({"tokens": [1, 2]}, r"tokens must be a list of str"),
    ({"token_type": [1]}, r"264 tokens but 1 token types"),
    ({"token_type": ["1"] * 264}, r"token_type must be a list of int"),
    ({"merges": None}, r"merges must be a list of str"),
    ({"merges": ["he"]}, r"merge 'he' does not join two tokens"),
    ({"merges": ["h zz"]}, r"merge 'h zz' does not join two tokens"),
    ({"merges": ["h h"]}, r"merge 'h h' does not join two tokens"),
    ({"bos_token_id": 264}, r"bos_token_id must be an id below 264, got 264"),
    ({"eos_token_id": -1}, r"eos_token_id must be an id below 264, got -1"),
    ({"eos_token_id": "0"}, r"eos_token_id must be an id"),
    ({"add_bos_token": 1}, r"add_bos_token must be true or false, got 1"),
    ({"add_bos_token": True, "bos_token_id": None}, r"there is no bos_token_id"),
    ({"add_eos_token": True, "eos_token_id": None}, r"there is no eos_token_id"),
    ({"tokens": ["a", "a"], "token_type": [1, 1]}, r"token 'a' occurs twice, as id 0 and 1"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_gguf_tokenizers_that_cannot_be_exact_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=rf"^tiny: .*{reason}"):
        from_gguf(**changes)
    with pytest.raises(ModelError, match="chat_template must be text"):
        Tokenizer.from_gguf(tokenizer_metadata() | {"tokenizer.chat_template": 3})


# --- SentencePiece ----------------------------------------------------------------------------

MARK = "\u2581"
PIECES = ["he", "ll", "hell", "hello", "lo", "ello", "el", f"{MARK}h", f"{MARK}hello", f"{MARK}w"]
PIECES += [f"{MARK}{MARK}", f"{MARK}{MARK}{MARK}", "ow", "wow", "oo", "ooo", "a\n"]
CHARACTERS = [MARK, *"helowa", "\n", "é"]
FIRST_BYTE, FIRST_PIECE = 3, 3 + 256


def sentence_piece(**changes: Any) -> Tokenizer:
    """A vocabulary of three special tokens, the bytes, some pieces and their characters."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3] + [6] * 256
    pieces = [*PIECES, *CHARACTERS, "<tool>"]
    values: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens + pieces,
        "token_type": [*kinds, *[1] * (len(pieces) - 1), 4],
        "scores": [0.0] * len(tokens) + [-float(rank) for rank in range(len(pieces))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": False,
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}
    return Tokenizer.from_gguf(metadata, "spm")


def joined_by_score(text: str, prefix: bool = True) -> list[int]:
    """What SentencePiece does: join the neighbours whose union scores best, leftmost first."""
    known = {piece: FIRST_PIECE + rank for rank, piece in enumerate([*PIECES, *CHARACTERS])}
    symbols = list((MARK if prefix and text else "") + text.replace(" ", MARK))
    while True:
        joins = [
            (known[left + right], place)
            for place, (left, right) in enumerate(pairwise(symbols))
            if left + right in known
        ]
        if not joins:
            break
        _, place = min(joins)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    ids = []
    for symbol in symbols:
        spelled = [known[symbol]] if symbol in known else []
        ids += spelled or [FIRST_BYTE + byte for byte in symbol.encode()]
    return ids


@given(st.text(st.sampled_from("hello wa\né🙂"), max_size=24) | st.text(max_size=12))
def test_sentence_piece_joins_by_score(text: str) -> None:
    assert sentence_piece().encode(text) == joined_by_score(text)
    bare = sentence_piece(add_space_prefix=False)
    assert bare.encode(text) == joined_by_score(text, prefix=False)


def test_the_order_of_scores_matters() -> None:
    # Negative control of the test above: other scores, other ids.
    tokens = 3 + 256 + len(PIECES) + len(CHARACTERS) + 1
    rising = [float(rank) for rank in range(tokens)]
    text = "hel"
    assert sentence_piece(scores=rising).encode(text) != joined_by_score(text)


@given(st.text(max_size=24))
def test_sentence_piece_text_comes_back(text: str) -> None:
    marked = text.replace(MARK, " ")
    for prefix in (True, False):
        tokenizer = sentence_piece(add_space_prefix=prefix)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == marked


def test_special_and_user_defined_tokens_of_sentence_piece() -> None:
    tokenizer = sentence_piece(add_bos_token=True)
    tool = FIRST_PIECE + len(PIECES) + len(CHARACTERS)
    hello = FIRST_PIECE + PIECES.index(f"{MARK}hello")
    ids = tokenizer.encode("hello<tool>hello</s>")
    assert ids == [1, hello, tool, hello, 2]
    assert tokenizer.decode(ids) == "hello<tool> hello"
    assert tokenizer.end_token_ids == {2}


def test_several_spaces_as_one_user_defined_token() -> None:
    # Gemma's tokens of spaces are found before anything is joined, longest first.
    base = 3 + 256 + len(PIECES) + len(CHARACTERS)
    for spelled in ("  ", MARK * 2):
        kinds = [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) + len(CHARACTERS)) + [4]
        pieces = [piece.replace(MARK * 2, "x" + piece) for piece in PIECES]
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        tokens += [*pieces, *CHARACTERS, spelled]
        tokenizer = sentence_piece(tokens=tokens, token_type=kinds, add_space_prefix=False)
        letter = tokenizer.encode("a")
        assert tokenizer.encode("a    a") == [*letter, base, base, *letter]
        assert tokenizer.decode(tokenizer.encode("a   a")) == "a   a"


def test_bytes_stand_in_for_unknown_characters() -> None:
    tokenizer = sentence_piece()
    ids = tokenizer.encode("hello 🙂")
    assert [i - FIRST_BYTE for i in ids[-4:]] == list("🙂".encode())
    assert tokenizer.decode(ids) == "hello 🙂"
    assert tokenizer.decode(ids[:-1]) == "hello " + "\ufffd" * 3
    # Written out, a byte token is plain text.
    assert FIRST_BYTE + 10 not in tokenizer.encode("<0x0A>")


SENTENCE_PIECE_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scores": None}, r"scores must be a list of float"),
    ({"scores": [0.0]}, r"286 tokens but 1 scores"),
    ({"scores": [float("nan")] * 286}, r"scores must be finite numbers"),
    ({"add_space_prefix": 1}, r"add_space_prefix must be true or false"),
    ({"remove_extra_whitespaces": True}, r"remove_extra_whitespaces is not supported"),
    ({"precompiled_charsmap": [1, 2]}, r"precompiled_charsmap is not supported"),
    ({"unknown_token_id": None, "token_type": [5] * 286}, r"neither an unknown_token_id nor"),
]


@pytest.mark.parametrize(
    ("changes", "reason"), SENTENCE_PIECE_REFUSED, ids=lambda value: str(value)[:40]
)
def test_sentence_piece_that_cannot_be_exact_is_refused(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=rf"^spm: .*{reason}"):
        sentence_piece(**changes)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [True, False])
def test_ids_are_those_of_the_sentencepiece_library(prefix: bool) -> None:
    library = pytest.importorskip("sentencepiece")
    lines = Path(__file__).read_text().splitlines()
    written = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        model_type="bpe",
        vocab_size=700,
        hard_vocab_limit=False,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    model = library.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [model.IdToPiece(i) for i in range(model.vocab_size())]
    kinds = [2, 3, 3] + [
        4 if piece == "<tool>" else 6 if model.IsByte(i) else 1
        for i, piece in enumerate(pieces[3:], 3)
    ]
    tokenizer = sentence_piece(
        tokens=pieces,
        token_type=kinds,
        scores=[float(model.GetScore(i)) for i in range(len(pieces))],
        add_space_prefix=prefix,
    )
    texts = [*lines, "\n".join(lines), "  a   b ", "", " ", "日本 🙂\u0301", f"{MARK}x", "x" * 200]
    for text in texts:
        # Special tokens are text to the library; after others it marks no beginning again.
        plain = text.replace("<s>", "").replace("</s>", "")
        plain = plain.replace("<tool>", "") if prefix else plain
        ids = model.EncodeAsIds(plain)
        assert tokenizer.encode(plain) == ids
        assert tokenizer.decode(ids) == model.DecodeIds(ids)


def test_a_token_of_any_length_is_read_at_once() -> None:
    """Every cut of a long token once cost a copy of it."""
    pieces = ["a", "b", "ab", "a" * 300_000]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    found = sentence_piece(tokens=tokens, token_type=kinds, scores=[0.0] * len(tokens))
    assert found.encode("ab", add_special_tokens=False)[-1] == tokens.index("ab")
