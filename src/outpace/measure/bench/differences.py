"""Greedy answers that differ from plain decoding's: rounding, or a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from outpace.measure.bench.results import BenchRun, Classified, PathResults
from outpace.measure.prompts import BenchPrompt
from outpace.measure.ties import classify_difference
from outpace.models.load import LoadedModel

MOST_CLASSIFIED = 20
"""Differences of one batch size that are looked into; each takes a pass over its prompt."""
VIOLATION = "violation"


def differing(
    runs: Sequence[BenchRun], plain: str
) -> Iterator[tuple[BenchRun, str, list[int], list[int]]]:
    """(run, label of the prompt, plain ids, other ids) of each greedy answer that differs from that
    of plain decoding in the same round and batch."""
    expected = {
        (run.batch, run.round, run.group): run.token_ids
        for run in runs
        if run.method == plain and run.temperature == 0
    }
    for run in runs:
        key = (run.batch, run.round, run.group)
        if run.method == plain or run.temperature != 0 or key not in expected:
            continue
        for label, mine, theirs in zip(run.prompts, run.token_ids, expected[key], strict=True):
            if mine != theirs:
                yield run, label, theirs, mine


def classify(
    loaded: LoadedModel,
    found: PathResults,
    batch: int,
    prompts: Sequence[BenchPrompt],
    note: Callable[[str], None],
) -> None:
    """Look into the answers of our methods in this batch size, each only once; peers may round
    differently. `note` is told of violations."""
    token_ids = {prompt.label: prompt.token_ids for prompt in prompts}
    plain = next(info.name for info in found.methods if info.is_plain)
    ours = {info.name for info in found.methods if not info.is_peer}
    runs = [run for run in found.runs if run.batch == batch and run.method in ours]
    seen: dict[tuple[str, tuple[int, ...], tuple[int, ...]], str] = {}
    for run, label, plain_ids, other_ids in differing(runs, plain):
        key = (label, tuple(plain_ids), tuple(other_ids))
        if key not in seen:
            if len(seen) == MOST_CLASSIFIED:
                continue
            difference = classify_difference(loaded, token_ids[label], plain_ids, other_ids)
            assert difference is not None, "differing answers are equal"
            seen[key] = difference.kind
            found.classified.append(Classified(run.method, *key, seen[key]))
        if seen[key] == VIOLATION:
            note(
                f"{found.path}: the answer of {run.method} to {label} differs from plain "
                "decoding's by more than rounding; `outpace audit` looks into it"
            )
