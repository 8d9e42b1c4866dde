"""From what a caller calls a prompt to token ids."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Any

from outpace.errors import OptionError
from outpace.models.tokenizer import Tokenizer

Message = Mapping[str, Any]
Prompt = str | Mapping[str, Any] | List[Message]


def to_prompts(given: object) -> list[Prompt]:
    """The list of prompts that `LLM.generate` was given, whether one or several."""
    if isinstance(given, str | Mapping):
        return [given]
    if isinstance(given, List):
        return list(given)
    raise OptionError(
        'prompts are a string, {"prompt_token_ids": [...]}, or a list of these, got '
        f"{type(given).__name__}"
    )


def to_conversations(given: object) -> list[Prompt]:
    """The list of conversations that `LLM.chat` was given, whether one or several."""
    if isinstance(given, Mapping) and "messages" in given:
        return [given]
    if isinstance(given, List) and not isinstance(given, str):
        if all(_is_conversation(one) for one in given):
            return list(given)
        if all(isinstance(message, Mapping) for message in given):
            return [given]
    raise OptionError(
        'a conversation is a list of messages like {"role": "user", "content": "..."}; chat takes '
        f"one or a list of several, got {given!r:.80}"
    )


def _is_conversation(given: object) -> bool:
    if isinstance(given, Mapping):
        return "messages" in given
    return isinstance(given, List) and not isinstance(given, str)


def split_salt(prompt: Prompt) -> tuple[str, Prompt]:
    """(cache salt, the prompt without it). The salt is "" unless a mapping holds `cache_salt`.

    Raises OptionError for a salt that is not a text, or empty: then nothing would be kept apart.
    """
    if not isinstance(prompt, Mapping) or "cache_salt" not in prompt:
        return "", prompt
    salt = prompt["cache_salt"]
    if not isinstance(salt, str) or not salt:
        raise OptionError(f"cache_salt must be a text that is not empty, got {salt!r:.80}")
    rest = {key: value for key, value in prompt.items() if key != "cache_salt"}
    return salt, rest


def to_token_ids(
    prompt: Prompt, tokenizer: Tokenizer, vocab_size: int
) -> tuple[str | None, list[int]]:
    """(text, ids) of a string, of `{"prompt": ...}` or `{"prompt_token_ids": [...]}`, or of a
    conversation (a list of messages, or `{"messages": [...]}` and `tools` with them or not, put
    through the chat template). Text is None for bare ids.

    Raises OptionError for an empty prompt, ids outside the vocabulary, or anything else.
    """
    text: str | None = None
    tools = None
    if isinstance(prompt, Mapping) and {"messages"} <= set(prompt) <= {"messages", "tools"}:
        tools = prompt.get("tools")
        prompt = prompt["messages"]
        if not isinstance(prompt, List) or isinstance(prompt, str):
            raise OptionError(f"messages must be a list of messages, got {prompt!r:.80}")
    if isinstance(prompt, str):
        text, ids = prompt, tokenizer.encode(prompt)
    elif isinstance(prompt, Mapping):
        text, ids = _from_mapping(prompt, tokenizer)
    elif isinstance(prompt, List):
        messages = [_message(message) for message in prompt]
        text = tokenizer.apply_chat_template(messages, tools=tools)
        ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        raise OptionError(
            'a prompt is a string, {"prompt_token_ids": [...]} or a list of messages, got '
            f"{type(prompt).__name__}; token ids stand in a mapping"
        )
    if not ids and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id]
    if not ids:
        raise OptionError("the prompt is empty: there is no token to start from")
    for token in ids:
        # Also for text: a tokenizer may know tokens that were added without resizing the model.
        if not 0 <= token < vocab_size:
            raise OptionError(f"token id {token} is outside the model's vocabulary of {vocab_size}")
    return text, ids


def _index(token: object) -> int:
    if isinstance(token, bool):
        raise TypeError("a truth value is no token id")
    return operator.index(token)  # type: ignore[arg-type]


def _message(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise OptionError(
            'a conversation is a list of messages like {"role": "user", "content": "..."}, got '
            f'{type(message).__name__} among them; token ids go in {{"prompt_token_ids": [...]}}'
        )
    if "cache_salt" in message:
        raise OptionError(
            "cache_salt stands in a message, where it would do nothing; put it beside them: "
            '{"messages": [...], "cache_salt": "..."}'
        )
    return dict(message)


def _from_mapping(prompt: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[str | None, list[int]]:
    if set(prompt) == {"prompt"} and isinstance(prompt["prompt"], str):
        return prompt["prompt"], tokenizer.encode(prompt["prompt"])
    if set(prompt) != {"prompt_token_ids"}:
        raise OptionError(
            'a prompt mapping is {"prompt": text}, {"prompt_token_ids": [ids]} or {"messages": '
            '[...]}, this with "tools" or without, each with a "cache_salt" or without, got keys '
            f"{sorted(map(str, prompt))}"
        )
    try:
        return None, [_index(token) for token in prompt["prompt_token_ids"]]
    except TypeError as error:
        raise OptionError("prompt_token_ids must be a list of whole numbers") from error
