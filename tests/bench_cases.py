"""Results of a benchmark, made up: figures that can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outpace.measure.bench.results import BenchResults, BenchRun, MethodInfo, PathResults
from outpace.measure.bench.steps import Step
from outpace.measure.kept import Answer, BatchTiming
from outpace.measure.passes import PassTimes
from outpace.outputs import SpeculationStats

PLAIN = MethodInfo("plain", {"method": "none"}, is_plain=True)
NGRAM = MethodInfo("ngram K=2", {"method": "ngram", "num_speculative_tokens": 2})
PEER = MethodInfo("other plain", None, is_peer=True)

IDS = tuple(range(11))


def step(
    *, pass_ms: float, draft_ms: float = 0.0, rows: int = 1, seqs: int = 1, tokens: int = 1
) -> Step:
    """With a rest of 1 ms."""
    return Step(draft_ms / 1e3, pass_ms / 1e3, 1e-3, seqs, rows, rows - seqs, tokens)


def run(
    method: str,
    speed: float,
    *,
    group: str = "1",
    column: str = "qa",
    round: int = 0,
    temperature: float = 0.0,
    batch: int = 1,
    ids: Sequence[int] = IDS,
    steps: Sequence[Step] = (),
    stats: SpeculationStats | None = None,
) -> BenchRun:
    """A first token after half a second, then ten more of each request at `speed` a second."""
    answers = [Answer(list(ids), 0.5, stats or SpeculationStats()) for _ in range(batch)]
    num_tokens = 10 * batch
    timing = BatchTiming(answers, 0.5 + num_tokens / speed, num_tokens / speed, num_tokens)
    labels = (group,) if batch == 1 else tuple(f"{group}.{i}" for i in range(batch))
    return BenchRun(temperature, batch, round, group, column, method, labels, timing, tuple(steps))


def path_of(
    runs: Sequence[BenchRun], passes: Sequence[PassTimes] = (), **values: Any
) -> PathResults:
    """Prompts of 20 tokens; memory that could carry 100 plain tokens a second."""
    return PathResults(
        "native q4_1",
        "q4_1",
        "native",
        "native step",
        weights_bytes=10_000_000,
        memory_bytes_per_s=1e9,
        methods=[PLAIN, NGRAM, PEER],
        passes=list(passes),
        runs=list(runs),
        prompt_lens=dict.fromkeys((label for each in runs for label in each.prompts), 20),
        **values,
    )


def results_of(
    runs: Sequence[BenchRun], passes: Sequence[PassTimes] = (), **values: Any
) -> BenchResults:
    """A complete benchmark of one path."""
    return BenchResults(
        provenance={"outpace": "0.1.0", "cores": 2},
        options={"model": "tiny", "batches": (1,)},
        model_name="tiny",
        model_fingerprint="f",
        paths=[path_of(runs, passes, **values)],
        elapsed_s=61.0,
        complete=True,
    )
