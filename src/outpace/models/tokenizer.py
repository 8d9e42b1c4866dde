"""Text to token ids and back, from GGUF metadata or a Hugging Face directory.

The work is done by the `tokenizers` library. What is ours is knowing which ids are control tokens
and which end an answer, and (in `gguf_tokenizer`) which rules the model was trained with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from outpace.errors import ModelError, OptionError
from outpace.models.chat import ChatTemplate
from outpace.models.config import read_json
from outpace.models.gguf.tokenizer import read_tokenizer

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
        """Build from the `tokenizer.*` metadata of a GGUF file.

        Raises ModelError for a tokenizer kind or pre-tokenizer that is not reproduced exactly,
        and for missing or contradictory metadata.
        """
        parts = read_tokenizer(metadata, name)
        return cls(
            parts.backend,
            bos_id=parts.bos_id,
            end_token_ids=parts.end_token_ids,
            chat=parts.chat,
            name=name,
        )

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

    @property
    def knows_tools(self) -> bool:
        """Whether the chat template has a place of its own for tools."""
        return self._chat is not None and self._chat.knows_tools

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
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except BaseException as error:
            raise OptionError(
                f"the tokenizer of {self.name} cannot encode this text ({_library(error)})"
            ) from None

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

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return str(self._backend.to_str())

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """Prompt text for a conversation of {"role": str, "content": str}, with tools or without.

        messages, tools: in OpenAI's shape, calls and their results among them; where the model's
        template knows nothing of tools, they are written as text (`models/chat_fallback.py`).
        Encode the result with add_special_tokens=False. Raises OptionError for malformed messages
        or tools, a conversation that the template refuses, or a model without a template.
        """
        if self._chat is None:
            raise OptionError(f"{self.name} has no chat template; give a plain prompt instead")
        return self._chat.render(messages, add_generation_prompt, tools)

    def save(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, from which `from_directory` makes an
        equal tokenizer; ids that end an answer stand in the model's config.json
        (`eos_token_id`). Each file is written whole or not at all."""
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if self._chat is not None:
            config |= {**self._chat.special_tokens, "chat_template": self._chat.source}
        if self.bos_id is not None:
            config["bos_token"] = self._backend.id_to_token(self.bos_id)
        texts = {
            "tokenizer.json": self.to_json(),
            "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False),
        }
        for name, text in texts.items():
            temporary = directory / f".{name}.partial"
            temporary.write_text(text + "\n", encoding="utf-8")
            temporary.replace(directory / name)

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


def _library(error: BaseException) -> BaseException:
    """An error of the tokenizers library, whose panics are no `Exception`; raises any other."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return error
    raise error


def _spelled(token: str | None) -> str:
    return "no token" if token is None else repr(token)


def _from_directory(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.exists():
        raise ModelError(
            f"{path}: tokenizer.json is missing; write one with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except BaseException as error:
        raise ModelError(f"{file}: cannot be read as a tokenizer ({_library(error)})") from None
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
