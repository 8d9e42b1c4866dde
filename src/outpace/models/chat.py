"""Chat templates: messages to prompt text, as the model's authors wrote it down in Jinja.

A template comes with the model and is not trusted: it runs in Jinja's immutable sandbox and sees
nothing but the messages, the tools, the names of the special tokens, JSON, the date and an
exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from outpace.errors import OptionError
from outpace.models.chat_fallback import needs_fallback, with_tools_as_text
from outpace.models.chat_messages import checked_messages, checked_tools
from outpace.models.chat_sandbox import ChatSandbox


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

    @property
    def knows_tools(self) -> bool:
        """Whether the template reads `tools`. Of one that does not, tools, calls and results are
        written as text (see `chat_fallback`). A template that is not valid knows none."""
        try:
            return "tools" in self._sandbox.variables
        except OptionError:
            return False

    def render(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """The prompt text.

        messages, tools: in OpenAI's shape; see `checked_messages` and `checked_tools`.

        Raises OptionError for malformed messages and tools and for template errors.
        """
        plain = checked_messages(messages)
        functions = None if tools is None else checked_tools(tools)
        if self.knows_tools or not needs_fallback(plain, functions):
            return self._render(plain, add_generation_prompt, functions)
        try:
            return self._render(with_tools_as_text(plain, functions), add_generation_prompt)
        except OptionError:
            if functions is None or plain[0]["role"] == "system":
                raise
        # Some templates take no system message, and this conversation had none of its own.
        in_user_turn = with_tools_as_text(plain, functions, into="user")
        return self._render(in_user_turn, add_generation_prompt)

    def _render(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        values = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": None,
            **self._special_tokens,
        }
        try:
            return self._sandbox.render(values)
        except OptionError:
            raise
        # A template may fail in any way its author did not think of; each is about this input.
        except Exception as error:
            raise _cannot_render(error) from error

    @cached_property
    def _sandbox(self) -> ChatSandbox:
        try:
            return ChatSandbox(self.source)
        except Exception as error:
            raise _cannot_render(error) from error


def _cannot_render(error: Exception) -> OptionError:
    return OptionError(f"the chat template cannot render these messages: {error}")
