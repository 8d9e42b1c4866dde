"""Raw results of a benchmark: every single figure, before any averaging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outpace.measure.bench.steps import Step
from outpace.measure.kept import BatchTiming
from outpace.measure.methods import Config
from outpace.measure.passes import PassTimes


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A way to decode. config: its `speculative_config`, None for peers. shape: of its drafts."""

    name: str
    config: Config | None
    is_plain: bool = False
    is_peer: bool = False
    shape: str = "chain"


@dataclass(frozen=True, slots=True)
class BenchRun:
    """A group of prompts decoded together by one method. Runs that agree in all but `method` were
    made right after each other.

    prompts: labels of the group's. steps: those after all requests had their first token; none of
    peers.
    """

    temperature: float
    batch: int
    round: int
    group: str
    column: str
    method: str
    prompts: tuple[str, ...]
    timing: BatchTiming
    steps: tuple[Step, ...] = ()

    @property
    def decode_speed(self) -> float | None:
        """Tokens per second of all requests together, once all have their first; None if the last
        one to begin ended everything."""
        timing = self.timing
        return timing.window_tokens / timing.window_s if timing.window_tokens else None

    @property
    def end_to_end_speed(self) -> float | None:
        """The same over the whole time, prompts included."""
        return sum(len(a.token_ids) for a in self.timing.answers) / self.timing.total_s

    @property
    def token_ids(self) -> list[list[int]]:
        return [answer.token_ids for answer in self.timing.answers]


@dataclass(frozen=True, slots=True)
class Classified:
    """An answer that differs from plain decoding's, and what that is: "tie" or "violation"."""

    method: str
    prompt: str
    plain_ids: tuple[int, ...]
    other_ids: tuple[int, ...]
    kind: str


@dataclass(slots=True)
class PathResults:
    """What was measured of the model in one dtype, computed by one thing.

    threads: that compute its passes. weights_bytes: that a pass over one row reads;
    memory_bytes_per_s: the rate at which memory is read here; None where they are not known.
    prompt_lens: tokens of each prompt, by its label.
    """

    path: str
    dtype: str
    model_impl: str
    runs_on: str
    threads: int | None = None
    weights_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    methods: list[MethodInfo] = field(default_factory=list)
    passes: list[PassTimes] = field(default_factory=list)
    runs: list[BenchRun] = field(default_factory=list)
    classified: list[Classified] = field(default_factory=list)
    prompt_lens: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class BenchResults:
    """Filled while measuring. `complete` becomes true at the very end."""

    provenance: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    model_name: str = ""
    model_fingerprint: str | None = None
    paths: list[PathResults] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    complete: bool = False

    def note(self, text: str) -> None:
        """Something that readers must know, once."""
        if text not in self.notes:
            self.notes.append(text)
