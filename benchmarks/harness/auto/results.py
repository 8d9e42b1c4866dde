"""Raw results of the benchmark of `auto`: every single figure, before any averaging."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.results import Run
from outpace.measure.kept import BatchTiming


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Requests decoded together by one method. Runs that agree in all but `method` were made right
    after each other.

    part: "mixed" or "batch". prompt: which group of prompts it was; labels, kinds: of its requests.
    """

    dtype: str
    part: str
    decoding: str
    round: int
    prompt: str
    method: str
    labels: tuple[str, ...]
    kinds: tuple[str, ...]
    timing: BatchTiming

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def decode_speed(self) -> float | None:
        """Tokens per second of all requests together, once all have their first; None if the last
        one to begin ended everything."""
        timing = self.timing
        return timing.window_tokens / timing.window_s if timing.window_tokens else None

    @property
    def end_to_end_speed(self) -> float:
        """The same over the whole time, prompts included."""
        return sum(len(a.token_ids) for a in self.timing.answers) / self.timing.total_s

    @property
    def token_ids(self) -> list[list[int]]:
        return [answer.token_ids for answer in self.timing.answers]


@dataclass(slots=True)
class Results:
    """Filled while measuring. `complete` becomes true at the very end.

    subject: the method under test; fixed: what it is compared with; trees: which of all these draft
    trees. runs: part main; entropy_runs,
    batch_runs: the others.
    """

    subject: str = ""
    fixed: list[str] = field(default_factory=list)
    trees: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    entropy_runs: list[Run] = field(default_factory=list)
    batch_runs: list[BatchRun] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    model_fingerprint: str | None = None
    elapsed_s: float = 0.0
    complete: bool = False
