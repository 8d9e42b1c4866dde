"""Chat templates: messages to prompt text, as the model's authors wrote it down in Jinja.

A template comes with the model and is not trusted: it runs in Jinja's immutable sandbox and sees
nothing but the messages, the names of the special tokens, JSON, the date and an exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outpace.errors import OptionError


class ChatTemplate:
    """A Jinja chat template and the special tokens (`bos_token`, `eos_token`, ...) it may name.

    The environment is the one that templates are written for: transformers' filters, functions
    and whitespace settings.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)

    @property
    def special_tokens(self) -> dict[str, str]:
        """The special tokens by name. A copy."""
        return dict(self._special_tokens)

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt text. Raises OptionError for malformed messages and for template errors."""
        plain = [_checked_message(index, message) for index, message in _enumerated(messages)]
        try:
            return self._compiled.render(
                messages=plain,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except OptionError:
            raise
        # A template may fail in any way its author did not think of; each is about this input.
        except Exception as error:
            raise OptionError(f"the chat template cannot render these messages: {error}") from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment.from_string(self.source)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _enumerated(messages: Any) -> enumerate[Any]:
    if not isinstance(messages, list | tuple) or not messages:
        raise OptionError(
            "messages must be a non-empty list of {'role': ..., 'content': ...}, "
            f"got {_shown(messages)}"
        )
    return enumerate(messages)


def _checked_message(index: int, message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise OptionError(
            f"messages[{index}] must be an object with role and content, got {_shown(message)}"
        )
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise OptionError(
                f"messages[{index}].{key} must be a string, got {_shown(message.get(key))}"
            )
    checked = {}
    for key, value in message.items():
        if value is None:
            continue
        if not isinstance(key, str) or not isinstance(value, str):
            raise OptionError(f"messages[{index}].{key} is not supported: {_shown(value)}")
        checked[key] = str(value)
    return checked


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which prompts must not.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise OptionError(f"the chat template refuses these messages: {message}")


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
