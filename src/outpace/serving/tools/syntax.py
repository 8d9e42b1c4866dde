"""How models write calls down, and which of the ways a model's chat template teaches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outpace.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Syntax:
    """One way of writing calls. Each call is a JSON object with a name and arguments.

    opener: the text before a call, or before a list of calls ("": none).
    closer: the text after a call ("": none); one that is missing is forgiven.
    is_list: the calls stand in a JSON list.
    is_bare: a call may also begin the answer without the opener, and follow another call after
        a semicolon or nothing at all.
    arguments_key: what the arguments are called when we say how calls are to be written; both
        names are understood.
    id_length: of a call's id, when it has no prefix (None: `call_` and 24 characters).
    """

    opener: str
    closer: str = ""
    is_list: bool = False
    is_bare: bool = False
    arguments_key: str = "arguments"
    id_length: int | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(marker for marker in (self.opener, self.closer) if marker)

    @property
    def after_call(self) -> tuple[str, ...]:
        """What may follow a call's object."""
        if self.is_list:
            return (",", "]")
        return (";", "{") if self.is_bare else (self.closer,)


# Also Qwen's, and that of our own text for templates that know no tools.
HERMES = Syntax("<tool_call>", "</tool_call>")
LLAMA3 = Syntax("<|python_tag|>", is_bare=True, arguments_key="parameters")
# Mistral's templates refuse ids of any other length when calls are handed back to them.
MISTRAL = Syntax("[TOOL_CALLS]", is_list=True, id_length=9)


def constrained(syntax: Syntax) -> Syntax:
    """Of an answer that a JSON schema makes a list of calls, without any marks."""
    return replace(syntax, opener="", closer="", is_list=True, is_bare=False)


def syntax_of(tokenizer: Tokenizer) -> Syntax:
    """What the chat template teaches the model to write, by the marks in its source."""
    source = tokenizer.chat_template
    if source is None or not tokenizer.knows_tools:
        return HERMES
    if MISTRAL.opener in source:
        return MISTRAL
    if HERMES.opener in source:
        return HERMES
    if LLAMA3.opener in source or '"parameters": ' in source:
        return LLAMA3
    return HERMES


def hides_markers(syntax: Syntax, tokenizer: Tokenizer) -> bool:
    """Whether skip_special_tokens would take the marks out of the text."""
    return any(_is_special(marker, tokenizer) for marker in syntax.markers)


def _is_special(marker: str, tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode(marker, add_special_tokens=False)
    shown = tokenizer.decode(ids, skip_special_tokens=True)
    return shown != tokenizer.decode(ids, skip_special_tokens=False)
