"""Engines with several drafting methods, and requests of different ones in one batch."""

from __future__ import annotations

import threading
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any

from fake_head import FakeHead, head_config

from outpace import LLM, SamplingParams
from outpace.outputs import Event, RequestOutput


@dataclass
class Answer:
    """One request's events and its output at the end."""

    output: RequestOutput
    events: list[Event] = field(default_factory=list)

    @property
    def token_ids(self) -> list[list[int]]:
        """By answer."""
        return [list(answer.token_ids) for answer in self.output.outputs]

    @property
    def drafted(self) -> list[tuple[int, ...]]:
        """The drafts that were verified, one after the other."""
        return [event.drafted for event in self.events if event.drafted]

    @property
    def origins(self) -> set[str]:
        """Whose tokens were accepted."""
        return {origin for event in self.events for origin in event.origins} - {""}

    @property
    def counts(self) -> tuple[int, int, int]:
        stats = self.output.stats
        return stats.num_steps, stats.num_draft_tokens, stats.num_accepted_tokens


def together(
    llm: LLM, requests: List[tuple[str, list[int]]], params: SamplingParams | List[SamplingParams]
) -> list[Answer]:
    """Answer requests, (method, prompt), that start in the same step."""
    each = params if isinstance(params, List) else [params] * len(requests)
    gate = threading.Event()

    def hold() -> None:
        gate.wait()

    # The engine's thread obeys commands in order: none of the requests can run before the others.
    llm._loop._commands.put(hold)
    try:
        streams = [
            llm.stream({"prompt_token_ids": ids}, own, speculative={"method": method})
            for (method, ids), own in zip(requests, each, strict=True)
        ]
    finally:
        gate.set()
    events = [list(stream) for stream in streams]
    return [Answer(stream.output, own) for stream, own in zip(streams, events, strict=True)]


def fake_head(algorithm: str, vocab_size: int = 96, **options: Any) -> FakeHead:
    """A head over the features of a tiny model's two layers; equal arguments give equal heads."""
    config = head_config(
        algorithm=algorithm,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size - 2,
        feature_layers=(0, 1, 2) if algorithm == "eagle3" else (2,),
        target_hidden_size=32,
    )
    return FakeHead(config, **({"seed": 3, "sharpness": 2.0} | options))
