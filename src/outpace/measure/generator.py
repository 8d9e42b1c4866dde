"""A target with its engine, as training asks for answers (`training.generator.Generator`)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outpace import LLM
    from outpace.params import SamplingParams


class EngineGenerator:
    """Answers by an engine, decoded together as far as it has rows."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def generate(
        self, prompts: List[List[int]], params: List[SamplingParams], /
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield (index, ids of the answer) in the order of the prompts; all are queued at once.
        Closed before its end, it cancels what runs."""
        with ExitStack() as streams:
            requests = [
                streams.enter_context(self._llm.stream({"prompt_token_ids": list(ids)}, each))
                for ids, each in zip(prompts, params, strict=True)
            ]
            for index, stream in enumerate(requests):
                yield index, stream.drain().outputs[0].token_ids
