"""Raw results: every single figure that was measured, before any averaging."""

from __future__ import annotations

from dataclasses import dataclass, field

from outpace.engine.metrics import EngineMetrics
from outpace.measure.passes import PassTimes
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


@dataclass(slots=True)
class Overhead:
    """Where the time of decoding steps went, in seconds over all `num_steps`.

    step_s: inside the engine's steps; draft_s and target_s are parts of it. wall_s: from the
    call to its return, so wall_s - step_s is spent on either side of and between steps.
    """

    dtype: str
    decoding: str
    method: str
    num_steps: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    step_s: float = 0.0
    wall_s: float = 0.0

    def add(self, counted: EngineMetrics, wall_s: float) -> None:
        """Add one generation."""
        self.num_steps += counted.num_steps
        self.draft_s += counted.draft_s
        self.target_s += counted.target_s
        self.step_s += counted.step_s
        self.wall_s += wall_s


@dataclass(slots=True)
class Results:
    """Filled while measuring. `complete` becomes true at the very end."""

    passes: list[PassTimes] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    overheads: list[Overhead] = field(default_factory=list)
    rounds: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    model_fingerprint: str | None = None
    elapsed_s: float = 0.0
    complete: bool = False
