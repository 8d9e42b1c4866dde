"""The partner of `outpace chat` that runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click

from outpace.cli.answers import run_request
from outpace.outputs import Event, SpeculationStats
from outpace.params import SamplingParams

if TYPE_CHECKING:
    from outpace import LLM

ACCEPTED_COLOUR = "cyan"

Messages = list[dict[str, str]]
Show = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a conversation, as far as it came. tokens_per_s: None for a single step."""

    text: str
    stats: SpeculationStats
    tokens_per_s: float | None


class Partner(Protocol):
    """Who answers: a model in this process, or a server."""

    def banner(self) -> str:
        """The line that a terminal shows first."""

    def notice(self, params: SamplingParams) -> str | None:
        """What must be said before the first answer, if anything."""

    def answer(
        self, messages: Messages, params: SamplingParams, show: Show, stopped: Callable[[], bool]
    ) -> Reply:
        """Stream one answer: `show` is handed its text in pieces, styled for a terminal. It ends
        early once `stopped()` is true. Raises OutpaceError where there is none."""


class LocalModel:
    """A model and its engine."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def banner(self) -> str:
        return banner(self._llm.model_name, self._llm.method)

    def notice(self, params: SamplingParams) -> str | None:
        if not self._llm.lossy or params.is_greedy:
            return None
        return f"LOSSY: {self._llm.lossy} changes what the model says."

    def answer(
        self, messages: Messages, params: SamplingParams, show: Show, stopped: Callable[[], bool]
    ) -> Reply:
        shown: list[str] = []

        def show_event(event: Event) -> None:
            shown.append(event.text)
            show(styled(self._llm, event))

        answer = run_request(self._llm, messages, params, show=show_event, stopped=stopped)
        return Reply("".join(shown), answer.output.stats, answer.tokens_per_s)


def banner(model: str, method: str) -> str:
    """Who answers, and what the colours mean where there are any."""
    colours = f" Accepted draft tokens look {click.style('like this', fg=ACCEPTED_COLOUR)}."
    shown = "" if method == "none" else colours
    return f"{model}, method {method}.{shown} /help lists the commands."


def styled(llm: LLM, event: Event) -> str:
    """The event's text with accepted draft tokens in another colour."""
    if not any(event.origins):
        return event.text
    pieces = [llm.tokenizer.decode([i], skip_special_tokens=True) for i in event.token_ids]
    return styled_pieces(event.text, pieces, [bool(origin) for origin in event.origins])


def styled_pieces(text: str, pieces: Sequence[str], accepted: Sequence[bool]) -> str:
    """A text with the pieces that were accepted in another colour.

    Text is coloured token by token where the tokens' own texts make up the text.
    Where they do not (a character or a stop string in the making) one colour serves for all.
    """
    if not any(accepted):
        return text
    if len(pieces) != len(accepted) or "".join(pieces) != text:
        return click.style(text, fg=ACCEPTED_COLOUR)
    return "".join(
        click.style(piece, fg=ACCEPTED_COLOUR) if is_accepted else piece
        for piece, is_accepted in zip(pieces, accepted, strict=True)
    )
