"""v(n): what a target pass over n rows costs, which decides what speculation can gain."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

import torch

from outpace import SamplingParams
from outpace.models.load import LoadedModel
from outpace.runner import Runner
from outpace.types import Draft
from outpace.types import Sequence as TokenSequence

_CHUNK_LEN = 512


@dataclass(slots=True)
class PassTimes:
    """Seconds of passes over `num_rows` rows after `context_len` cached tokens, one per repetition.

    Times at the same place of two such lists were taken in the same repetition. shape: "chain", or
    "tree" where every token has two children.
    """

    dtype: str
    context_len: int
    num_rows: int
    seconds: list[float] = field(default_factory=list)
    shape: str = "chain"


def measure_passes(
    loaded: LoadedModel,
    *,
    rows: Sequence[int],
    context_lens: Sequence[int],
    repeats: int,
    seed: int,
    results: list[PassTimes],
    tick: Callable[[], None],
    shapes: Sequence[str] = ("chain",),
    label: str | None = None,
) -> None:
    """Time every combination `repeats` times, in a new random order each time, after a warm-up.

    label: what the results call the model's dtype.

    A pass feeds the newest token and n - 1 draft tokens and computes logits for all n rows; it
    is then rolled back. `results` grows at once and is filled on the way, so that it is of use
    after an interruption; tick() is called after every pass.
    """
    stopping = Event()
    kinds = [(shape, n) for shape in shapes for n in rows]
    passes = _passes(loaded, kinds, context_lens, repeats, seed, label or loaded.dtype, results)

    def work() -> None:
        for _ in passes:
            tick()
            if stopping.is_set():
                return

    # In a thread of its own, as in the engine: OpenMP makes a second thread's workers go to
    # sleep sooner, and passes from the main thread would be those of another program.
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            pool.submit(work).result()
        finally:
            stopping.set()


def _passes(
    loaded: LoadedModel,
    kinds: Sequence[tuple[str, int]],
    context_lens: Sequence[int],
    repeats: int,
    seed: int,
    label: str,
    results: list[PassTimes],
) -> Iterator[None]:
    """Make the passes, one at each step of the iterator."""
    capacity = max(context_lens) + max(n for _, n in kinds)
    runner = Runner(
        loaded.decoder, loaded.new_cache(num_rows=len(context_lens), num_tokens=capacity)
    )
    rng = random.Random(seed)
    contexts = [
        _prefilled(runner, index, [rng.randrange(loaded.decoder.num_logits) for _ in range(length)])
        for index, length in enumerate(context_lens)
    ]
    table = [
        {(shape, n): PassTimes(label, len(seq.tokens), n, shape=shape) for shape, n in kinds}
        for seq in contexts
    ]
    results.extend(times[kind] for times in table for kind in kinds)
    for repetition in range(repeats + 1):
        for seq, times in zip(contexts, table, strict=True):
            for kind in rng.sample(kinds, len(kinds)):
                elapsed = _time_pass(runner, seq, *kind)
                if repetition:
                    times[kind].seconds.append(elapsed)
                yield


@torch.inference_mode()
def _prefilled(runner: Runner, seq_id: int, token_ids: list[int]) -> TokenSequence:
    """A sequence with all but its newest token in the cache."""
    seq = TokenSequence(seq_id, token_ids, len(token_ids), SamplingParams())
    runner.open(seq)
    while runner.num_cached(seq) < len(token_ids):
        runner.extend([seq], max_feed=[_CHUNK_LEN])
    runner.commit([seq])
    return seq


@torch.inference_mode()
def _time_pass(runner: Runner, seq: TokenSequence, shape: str, num_rows: int) -> float:
    parents = None if shape == "chain" else tuple(n // 2 - 1 for n in range(num_rows - 1))
    token_ids = tuple(itertools.islice(itertools.cycle(seq.tokens), num_rows - 1))
    draft = Draft(token_ids, parents=parents)
    started = time.perf_counter()
    scores = runner.extend([seq], [draft])
    if scores.logits.device.type == "cuda":
        torch.cuda.synchronize(scores.logits.device)
    elapsed = time.perf_counter() - started
    assert len(scores.logits) == num_rows
    # The sequence gained nothing, so this forgets all that the pass fed.
    runner.commit([seq])
    return elapsed
