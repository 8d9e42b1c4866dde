"""Raw results of the benchmark of drafting methods."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.drafting.methods import Width
from harness.results import Run
from outpace.measure.passes import PassTimes


@dataclass(slots=True)
class Results:
    """Filled while measuring. `complete` becomes true at the very end.

    runs: every method with its own settings. width_runs: chains and trees of several widths, and
    plain decoding beside them; `widths` says which is which. answers: by label, what the model said
    to the earlier turns of a conversation. paths: what computed, in the order it was measured.
    """

    passes: list[PassTimes] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    widths: list[Width] = field(default_factory=list)
    width_runs: list[Run] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    model_fingerprint: str | None = None
    elapsed_s: float = 0.0
    complete: bool = False
