"""The tokenizer in the metadata of a GGUF file: byte-level BPE or SentencePiece BPE.

GGUF names the kind ("gpt2", "llama") and, for the first, the pre-tokenizer; rules, normaliser and
decoder follow from the names. A name is read only if its rules are known to be those that the
model's authors published: llama.cpp's "default" for models it does not know is not among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NoReturn

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from outpace.errors import ModelError
from outpace.models.chat import ChatTemplate

# Token kinds of GGUF (tokenizer.ggml.token_type).
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
# The published split of Llama 3; Qwen 2 takes digits one by one; OpenAI's o200k also ends words
# where lower case turns to upper, and Mistral's tekken does so without contractions.
_LLAMA3_SPLIT = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace("{1,3}", "")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN_SPLIT = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_O200K_SPLIT = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class _Pre:
    """Rules of a byte-level BPE.

    split: pattern that cuts text into pieces; None: GPT-2's own. digits: they stand alone before.
    whole: a piece that is a token stays as it stands, without merging. bos: text begins with the
    beginning token unless the file says otherwise.
    """

    split: str | None = None
    digits: bool = False
    nfc: bool = False
    whole: bool = False
    bos: bool = False


_LLAMA3 = _Pre(_LLAMA3_SPLIT, whole=True, bos=True)
_PRE = {
    "gpt-2": _Pre(),
    "olmo": _Pre(nfc=True),  # GPT-NeoX's vocabulary, which Pythia has as well
    "smollm": _Pre(digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _Pre(_LLAMA3_SPLIT),
    "dbrx": _Pre(_LLAMA3_SPLIT),
    "qwen2": _Pre(_QWEN2_SPLIT, nfc=True),
    "stablelm2": _Pre(_QWEN2_SPLIT, nfc=True),
    "tekken": _Pre(_TEKKEN_SPLIT, whole=True, bos=True),
    "gpt-4o": _Pre(_O200K_SPLIT),
}
_SPACE_MARK = "\u2581"
_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a `Tokenizer` is made of."""

    backend: tokenizers.Tokenizer
    bos_id: int | None
    end_token_ids: frozenset[int]
    chat: ChatTemplate | None


def read_tokenizer(metadata: Mapping[str, Any], name: str) -> TokenizerParts:
    """Build from the `tokenizer.*` metadata of a GGUF file.

    Raises ModelError for a tokenizer kind or pre-tokenizer that is not reproduced exactly, and for
    missing or contradictory metadata.
    """
    return _GGUFReader(metadata, name).build()


class _GGUFReader:
    """Reads the metadata of one file; `name` is what messages call it."""

    def __init__(self, metadata: Mapping[str, Any], name: str) -> None:
        self._metadata = metadata
        self._name = name
        kind = metadata.get("tokenizer.ggml.model")
        backends = {"gpt2": self._byte_level, "llama": self._sentence_piece}
        if not isinstance(kind, str) or kind not in backends:
            self._fail(
                f"tokenizer kind {kind!r} is not supported; supported: 'gpt2' (byte-level BPE), "
                "'llama' (SentencePiece BPE)"
            )
        self._backend: Callable[[], tokenizers.Tokenizer] = backends[kind]
        self._pre = self._pre_rules() if kind == "gpt2" else _Pre(bos=True)
        self._tokens: list[str] = self._list("tokens", str)
        self._kinds: list[int] = (
            self._list("token_type", int)
            if "tokenizer.ggml.token_type" in metadata
            else [_NORMAL] * len(self._tokens)
        )
        if len(self._kinds) != len(self._tokens):
            self._fail(f"{len(self._tokens)} tokens but {len(self._kinds)} token types")

    def build(self) -> TokenizerParts:
        backend = self._backend()
        special = {name: self._special_id(name) for name in _SPECIAL_NAMES}
        bos, eos = special["bos_token"], special["eos_token"]
        backend.post_processor = self._post_processor(bos, eos)
        ends = {eos, self._id("eot_token_id"), self._id("eom_token_id")}
        source = self._metadata.get("tokenizer.chat_template")
        if source is not None and not isinstance(source, str):
            self._fail("tokenizer.chat_template must be text")
        names = {name: self._tokens[i] for name, i in special.items() if i is not None}
        return TokenizerParts(
            backend,
            bos,
            frozenset(token_id for token_id in ends if token_id is not None),
            None if source is None else ChatTemplate(source, names),
        )

    def _pre_rules(self) -> _Pre:
        pre = self._metadata.get("tokenizer.ggml.pre")
        if not isinstance(pre, str) or pre not in _PRE:
            self._fail(f"pre-tokenizer {pre!r} is not supported; supported: {', '.join(_PRE)}")
        return _PRE[pre]

    def _byte_level(self) -> tokenizers.Tokenizer:
        vocab = self._vocab()
        merges = []
        for merge in self._list("merges", str):
            left, space, right = merge.partition(" ")
            known = left in vocab and right in vocab and left + right in vocab
            if not space or not known:
                self._fail(f"merge {merge!r} does not join two tokens of the vocabulary")
            merges.append((left, right))
        backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=self._pre.whole))
        if self._pre.nfc:
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = _byte_level_pieces(self._pre)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(self._added(_CONTROL, special=True))
        backend.add_tokens(self._added(_USER_DEFINED, special=False))
        return backend

    def _sentence_piece(self) -> tokenizers.Tokenizer:
        """BPE over characters, spaces written as U+2581 and unknown characters as their bytes.

        The mark that begins a text also begins what follows a special or user-defined token, as
        in llama.cpp and in the tokenizer.json files of Llama 2, Mistral and Phi-3.
        """
        for key in ("remove_extra_whitespaces", "precompiled_charsmap"):
            if self._metadata.get(f"tokenizer.ggml.{key}"):
                self._fail(f"tokenizer.ggml.{key} is not supported")
        vocab = self._vocab()
        unknown = self._special_id("unk_token")
        if unknown is None and not all(token in vocab for token in _BYTE_TOKENS):
            self._fail("there is neither an unknown_token_id nor a token for each byte")
        model = models.BPE(
            vocab,
            self._scored_merges(vocab),
            unk_token=None if unknown is None else self._tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        backend = tokenizers.Tokenizer(model)
        prefix = self._flag("add_space_prefix", default=True)
        mark = normalizers.Replace(" ", _SPACE_MARK)
        decoder = [decoders.Replace(_SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        if prefix:
            backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE_MARK), mark])
            decoder.append(decoders.Strip(content=" ", left=1, right=0))
        else:
            backend.normalizer = mark
        backend.decoder = decoders.Sequence(decoder)
        backend.add_special_tokens(self._added(_CONTROL, special=True))
        # Tokens of several spaces are to be found in text whose spaces are marked already; with a
        # prefix that cannot be asked for, because the token itself would be given the prefix.
        backend.add_tokens(self._added(_USER_DEFINED, special=False, normalized=not prefix))
        return backend

    def _scored_merges(self, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
        """SentencePiece joins the two neighbours whose union has the highest score: as merges, all
        ways of cutting a token into two others, in falling order of the score of the union."""
        scores: list[float] = self._list("scores", float)
        if len(scores) != len(self._tokens):
            self._fail(f"{len(self._tokens)} tokens but {len(scores)} scores")
        if not all(map(math.isfinite, scores)):
            self._fail("tokenizer.ggml.scores must be finite numbers")
        normal = {token: i for token, i in vocab.items() if self._kinds[i] == _NORMAL}
        # Cut only where a token can end: a file may claim tokens of any length.
        lengths = sorted({len(token) for token in normal})
        ranked = []
        for token, token_id in normal.items():
            for cut in takewhile(len(token).__gt__, lengths):
                left, right = token[:cut], token[cut:]
                if left in normal and right in normal:
                    ranked.append((-scores[token_id], token_id, normal[left], left, right))
        ranked.sort()
        return [(left, right) for *_, left, right in ranked]

    def _vocab(self) -> dict[str, int]:
        vocab: dict[str, int] = {}
        for token_id, (token, kind) in enumerate(zip(self._tokens, self._kinds, strict=True)):
            if kind == _UNUSED:
                continue
            if vocab.setdefault(token, token_id) != token_id:
                self._fail(f"token {token!r} occurs twice, as id {vocab[token]} and {token_id}")
        return vocab

    def _added(self, kind: int, special: bool, normalized: bool = False) -> list[AddedToken]:
        return [
            AddedToken(token, special=special, normalized=normalized)
            for token, token_kind in zip(self._tokens, self._kinds, strict=True)
            if token_kind == kind and token
        ]

    def _post_processor(self, bos: int | None, eos: int | None) -> Any:
        pieces, special = ["$A"], []
        if self._flag("add_bos_token", default=self._pre.bos):
            if bos is None:
                self._fail("add_bos_token is set, but there is no bos_token_id")
            pieces.insert(0, "bos")
            special.append(("bos", bos))
        if self._flag("add_eos_token", default=False):
            if eos is None:
                self._fail("add_eos_token is set, but there is no eos_token_id")
            pieces.append("eos")
            special.append(("eos", eos))
        if not special:
            return processors.ByteLevel(trim_offsets=False)
        # Names of our own: the library's pattern gives meaning to characters of the tokens' text.
        return processors.TemplateProcessing(single=pieces, special_tokens=special)

    def _special_id(self, name: str) -> int | None:
        # llama.cpp spells these two keys out.
        long_names = {"unk_token": "unknown_token", "pad_token": "padding_token"}
        return self._id(f"{long_names.get(name, name)}_id")

    def _id(self, key: str) -> int | None:
        token_id = self._metadata.get(f"tokenizer.ggml.{key}")
        if token_id is None:
            return None
        if type(token_id) is not int or not 0 <= token_id < len(self._tokens):
            self._fail(f"{key} must be an id below {len(self._tokens)}, got {token_id!r}")
        return token_id

    def _flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            self._fail(f"tokenizer.ggml.{key} must be true or false, got {value!r}")
        return value

    def _list(self, key: str, element: type) -> list[Any]:
        values = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(values, list) or not all(type(value) is element for value in values):
            self._fail(f"tokenizer.ggml.{key} must be a list of {element.__name__}")
        return values

    def _fail(self, reason: str) -> NoReturn:
        raise ModelError(f"{self._name}: {reason}")


def _byte_level_pieces(pre: _Pre) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None)
    if pre.split is not None:
        pieces = pre_tokenizers.Split(Regex(pre.split), behavior="isolated")
        return pre_tokenizers.Sequence([pieces, byte_level])
    if pre.digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level])
    return byte_level
