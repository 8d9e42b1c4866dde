"""Text to token ids and back, from GGUF metadata or a Hugging Face directory.

The work is done by the `tokenizers` library. What is ours is choosing the pre-tokenizer that the
model was trained with, and knowing which ids are control tokens and which end an answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from outpace.errors import ModelError, OptionError
from outpace.models.chat import ChatTemplate
from outpace.models.config import read_json

# Token kinds of GGUF (tokenizer.ggml.token_type).
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

# The published split of Llama 3, and that of Qwen 2, which takes digits one by one.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace("{1,3}", "")
_SUPPORTED_PRE = ("gpt-2", "llama-bpe", "qwen2", "smollm")
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A vocabulary with its rules. Immutable.

    vocab_size: one more than the largest id that has a token; the model may have more rows.
    bos_id: id of the beginning-of-text token, if there is one.
    end_token_ids: ids that end an answer.

    Raises ModelError if there are end ids and the vocabulary has none of them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        end_token_ids: Iterable[int] = (),
        chat: ChatTemplate | None = None,
        name: str = "tokenizer",
    ) -> None:
        # A tokenizer.json may carry its author's padding and truncation; both alter ids.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._chat = chat
        self._vocab = backend.get_vocab(with_added_tokens=True)
        self.name = name
        self.bos_id = bos_id
        self.end_token_ids = frozenset(end_token_ids)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1
        ends = self.end_token_ids
        if ends and not any(0 <= token_id < self.vocab_size for token_id in ends):
            raise ModelError(
                f"{name}: the end token ids {sorted(ends)} are outside the vocabulary of "
                f"{self.vocab_size} ids, so that no answer could end; correct eos_token_id"
            )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], name: str = "tokenizer") -> Tokenizer:
        """Build from the `tokenizer.*` metadata of a GGUF file (byte-level BPE only).

        Raises ModelError for a tokenizer kind or pre-tokenizer that is not reproduced exactly,
        and for missing or contradictory metadata.
        """
        return _GGUFReader(metadata, name).build()

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """Build from `tokenizer.json` and the files beside it in a Hugging Face directory.

        Raises ModelError for absent or damaged files.
        """
        return _from_directory(Path(path))

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template, if the model has one."""
        return None if self._chat is None else self._chat.source

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Control tokens written in it are recognised as themselves.

        add_special_tokens: put the model's own beginning (and end) token around the text, where
        it has one; pass False for the output of a chat template, which writes them itself.
        Bytes that the vocabulary lacks vanish, as they do in the published tokenizers.
        Raises OptionError for text that is not valid Unicode.
        """
        if not isinstance(text, str):
            raise OptionError(f"text to encode must be a string, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise OptionError(
                f"text to encode holds a lone surrogate at position {error.start}, which is not "
                "valid Unicode"
            ) from None
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids. Bytes that form no character become U+FFFD; ids without a token
        (rows that pad the model's vocabulary) become nothing."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself, control tokens included."""
        return self.decode([token_id], skip_special_tokens=False)

    def vocab(self) -> dict[str, int]:
        """Token as spelled in the vocabulary -> id. A copy."""
        return dict(self._vocab)

    def apply_chat_template(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """Prompt text for a conversation of {"role": str, "content": str}.

        Encode it with add_special_tokens=False. Raises OptionError for malformed messages, a
        conversation that the template refuses, or a model without a template.
        """
        if self._chat is None:
            raise OptionError(f"{self.name} has no chat template; give a plain prompt instead")
        return self._chat.render(messages, add_generation_prompt)

    def fingerprint(self) -> str:
        """Key of the table of ids and tokens (hex SHA-256): equal exactly if ids mean the same."""
        digest = hashlib.sha256()
        for token, token_id in sorted(self._vocab.items(), key=lambda item: item[1]):
            digest.update(f"{token_id}:{len(token)}:{token}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()


def check_same_vocabulary(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuse a draft whose ids mean other tokens than the target's.

    Tokens are compared, not sizes: rows that pad a model's vocabulary have no token and do not
    count. Raises OptionError naming the first differing id and both tokens.
    """
    if target.vocab() == draft.vocab():
        return
    target_tokens = {token_id: token for token, token_id in target.vocab().items()}
    draft_tokens = {token_id: token for token, token_id in draft.vocab().items()}
    for token_id in sorted(target_tokens.keys() | draft_tokens.keys()):
        ours, theirs = target_tokens.get(token_id), draft_tokens.get(token_id)
        if ours != theirs:
            raise OptionError(
                f"the draft model has another vocabulary than the target: id {token_id} is "
                f"{_spelled(ours)} in {target.name} and {_spelled(theirs)} in {draft.name}; use a "
                "draft model with the target's tokenizer"
            )


def _spelled(token: str | None) -> str:
    return "no token" if token is None else repr(token)


class _GGUFReader:
    """Builds a Tokenizer from GGUF metadata."""

    def __init__(self, metadata: Mapping[str, Any], name: str) -> None:
        self._metadata = metadata
        self._name = name
        kind = metadata.get("tokenizer.ggml.model")
        if kind != "gpt2":
            self._fail(
                f"tokenizer kind {kind!r} is not supported; supported: 'gpt2' (byte-level BPE)"
            )
        self._pre = metadata.get("tokenizer.ggml.pre")
        if self._pre not in _SUPPORTED_PRE:
            self._fail(
                f"pre-tokenizer {self._pre!r} is not supported; "
                f"supported: {', '.join(_SUPPORTED_PRE)}"
            )
        self._tokens: list[str] = self._list("tokens", str)
        self._kinds: list[int] = (
            self._list("token_type", int)
            if "tokenizer.ggml.token_type" in metadata
            else [1] * len(self._tokens)
        )
        if len(self._kinds) != len(self._tokens):
            self._fail(f"{len(self._tokens)} tokens but {len(self._kinds)} token types")

    def build(self) -> Tokenizer:
        backend = tokenizers.Tokenizer(self._bpe())
        if self._pre == "qwen2":
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = _pre_tokenizer(str(self._pre))
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(self._added(_CONTROL, special=True))
        backend.add_tokens(self._added(_USER_DEFINED, special=False))
        special = {name: self._special_id(name) for name in _SPECIAL_NAMES}
        bos, eos = special["bos_token"], special["eos_token"]
        backend.post_processor = self._post_processor(bos, eos)
        ends = {eos, self._id("eot_token_id"), self._id("eom_token_id")} - {None}
        source = self._metadata.get("tokenizer.chat_template")
        if source is not None and not isinstance(source, str):
            self._fail("tokenizer.chat_template must be text")
        names = {name: self._tokens[i] for name, i in special.items() if i is not None}
        return Tokenizer(
            backend,
            bos_id=bos,
            end_token_ids=[token_id for token_id in ends if token_id is not None],
            chat=None if source is None else ChatTemplate(source, names),
            name=self._name,
        )

    def _bpe(self) -> models.BPE:
        vocab: dict[str, int] = {}
        for token_id, (token, kind) in enumerate(zip(self._tokens, self._kinds, strict=True)):
            if kind == _UNUSED:
                continue
            if vocab.setdefault(token, token_id) != token_id:
                self._fail(f"token {token!r} occurs twice, as id {vocab[token]} and {token_id}")
        merges = []
        for merge in self._list("merges", str):
            left, space, right = merge.partition(" ")
            known = left in vocab and right in vocab and left + right in vocab
            if not space or not known:
                self._fail(f"merge {merge!r} does not join two tokens of the vocabulary")
            merges.append((left, right))
        # Llama 3's tokenizer takes a piece that is a token as it stands, without merging.
        return models.BPE(vocab, merges, ignore_merges=self._pre == "llama-bpe")

    def _added(self, kind: int, special: bool) -> list[AddedToken]:
        return [
            AddedToken(token, special=special, normalized=False)
            for token, token_kind in zip(self._tokens, self._kinds, strict=True)
            if token_kind == kind and token
        ]

    def _post_processor(self, bos: int | None, eos: int | None) -> Any:
        pieces, special = ["$A"], []
        if self._flag("add_bos_token", default=self._pre == "llama-bpe"):
            if bos is None:
                self._fail("add_bos_token is set, but there is no bos_token_id")
            pieces.insert(0, self._tokens[bos])
            special.append((self._tokens[bos], bos))
        if self._flag("add_eos_token", default=False):
            if eos is None:
                self._fail("add_eos_token is set, but there is no eos_token_id")
            pieces.append(self._tokens[eos])
            special.append((self._tokens[eos], eos))
        if not special:
            return processors.ByteLevel(trim_offsets=False)
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


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel
    if pre == "gpt-2":
        return byte_level(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level(add_prefix_space=False, use_regex=True)])
    split = {"llama-bpe": _LLAMA3_SPLIT, "qwen2": _QWEN2_SPLIT}[pre]
    pieces = pre_tokenizers.Split(Regex(split), behavior="isolated")
    return pre_tokenizers.Sequence([pieces, byte_level(add_prefix_space=False, use_regex=False)])


def _from_directory(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.exists():
        raise ModelError(
            f"{path}: tokenizer.json is missing; write one with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{file}: cannot be read as a tokenizer ({error})") from None
    config = _optional_json(path / "tokenizer_config.json")
    if config.get("auto_map"):
        raise ModelError(
            f"{path}: tokenizer_config.json asks for code from the model's repository (auto_map); "
            "trust_remote_code is not supported, because it runs code nobody here has checked"
        )
    names = {name: _token_content(config[name]) for name in _SPECIAL_NAMES if config.get(name)}
    _mark_special(backend, [*names.values(), *_extra_special(config)])
    vocabulary = {name: backend.token_to_id(token) for name, token in names.items()}
    model_config = _optional_json(path / "config.json")
    source = _chat_source(path, config)
    bos_id = vocabulary.get("bos_token", model_config.get("bos_token_id"))
    return Tokenizer(
        backend,
        bos_id=bos_id if isinstance(bos_id, int) else None,
        end_token_ids=_end_ids(path, vocabulary.get("eos_token"), model_config),
        chat=None if source is None else ChatTemplate(source, names),
        name=str(path),
    )


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file, "") if file.exists() else {}


def _token_content(token: Any) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _extra_special(config: dict[str, Any]) -> list[str]:
    lists = [config.get("additional_special_tokens"), config.get("extra_special_tokens")]
    return [
        _token_content(token) for tokens in lists if isinstance(tokens, list) for token in tokens
    ]


def _mark_special(backend: tokenizers.Tokenizer, tokens: list[str]) -> None:
    """What tokenizer_config.json calls special is so, even where tokenizer.json does not say it."""
    marked = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    added = [
        AddedToken(token, special=True, normalized=False)
        for token in dict.fromkeys(tokens)
        if token not in marked and backend.token_to_id(token) is not None
    ]
    backend.add_special_tokens(added)


def _end_ids(path: Path, eos_id: int | None, model_config: dict[str, Any]) -> set[int]:
    """The tokenizer's end token and those of generation (generation_config.json, or without
    that file the model's config.json)."""
    file = path / "generation_config.json"
    source = read_json(file, "") if file.exists() else model_config
    stated = source.get("eos_token_id")
    ids = stated if isinstance(stated, list) else [stated]
    for token_id in ids:
        if token_id is not None and type(token_id) is not int:
            raise ModelError(f"{path}: eos_token_id must hold token ids, got {stated!r}")
    return {token_id for token_id in [*ids, eos_id] if token_id is not None}


def _chat_source(path: Path, config: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file}: cannot be read ({error})") from None
    stated = config.get("chat_template")
    if isinstance(stated, list):  # several templates by name
        named = [entry for entry in stated if isinstance(entry, dict)]
        stated = next((e.get("template") for e in named if e.get("name") == "default"), None)
    if stated is not None and not isinstance(stated, str):
        raise ModelError(f"{path}: chat_template in tokenizer_config.json must be text")
    return stated
