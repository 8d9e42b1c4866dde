"""One generation as it was measured, before any averaging."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.measure.prompts import BenchPrompt
from outpace.measure.timing import Timing


@dataclass(frozen=True, slots=True)
class Run:
    """One generation. Runs that agree in all but `method` were made right after each other.

    dtype: what the weights are held in; where several things compute them, after the name of the
    one that did ("native q4_1"). decoding: "greedy" or a description of the sampling parameters.
    """

    dtype: str
    decoding: str
    round: int
    prompt: str
    category: str
    method: str
    num_prompt: int
    timing: Timing

    @classmethod
    def of(
        cls, dtype: str, decoding: str, round: int, prompt: BenchPrompt, method: str, timing: Timing
    ) -> Run:
        num_prompt = len(prompt.token_ids)
        return cls(
            dtype, decoding, round, prompt.label, prompt.category, method, num_prompt, timing
        )

    @property
    def decode_speed(self) -> float | None:
        """Tokens per second after the first step; None if the first step ended the answer."""
        timing = self.timing
        num_tokens = len(timing.token_ids) - timing.step_lens[0]
        return num_tokens / (timing.total_s - timing.ttft_s) if num_tokens else None

    @property
    def end_to_end_speed(self) -> float:
        """Output tokens per second of the whole call, prompt processing included."""
        return len(self.timing.token_ids) / self.timing.total_s
