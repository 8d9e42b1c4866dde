"""With how many requests together a way of drafting stops to pay."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace
from itertools import count, cycle, islice
from statistics import geometric_mean

from outpace.measure.advise.candidates import Candidate
from outpace.measure.advise.costs import StepCost
from outpace.measure.advise.findings import AtBatch, is_possible
from outpace.measure.advise.options import AdviseOptions, Clock
from outpace.measure.advise.predict import Machine, predict
from outpace.measure.advise.replay import Recorded, Score
from outpace.measure.advise.verifying import Runs, expected_of, run_once
from outpace.measure.kept import KeptEngine
from outpace.measure.timing import PLAIN_CONFIG
from outpace.models.load import LoadedModel

MEASURED = (2, 4, 8)
MOST_PREDICTED = 64
_LOOKUPS = ("lookahead", "ngram", "recycling", "suffix")
_BATCH_TOKENS = 48


def predicted_at(score: Score, cost: StepCost, machine: Machine, batch: int) -> float:
    """The ratio to plain decoding with `batch` requests together.

    cost, machine: as measured at the batch of `machine`. What a step takes beside its pass is taken
    to grow with the number of requests, and the drafting of lookups too, which look request by
    request; a draft's own passes serve all at once.
    """
    share = batch / machine.batch
    drafting = share if score.candidate.method in _LOOKUPS else 1.0
    own = replace(cost, draft_ms=cost.draft_ms * drafting, rest_ms=cost.rest_ms * share)
    plain = replace(machine.plain, rest_ms=machine.plain.rest_ms * share)
    return predict(score, own, replace(machine, plain=plain, batch=batch)).ratio


def predicted_crossover(score: Score, cost: StepCost, machine: Machine) -> int | None:
    """The smallest batch with which it is a loss; None up to MOST_PREDICTED."""
    for batch in count(1):
        if batch > MOST_PREDICTED:
            return None
        if predicted_at(score, cost, machine, batch) < 1:
            return batch
    raise AssertionError("counting ended")


def measure_batches(
    loaded: LoadedModel,
    candidate: Candidate,
    predicted: List[AtBatch],
    recorded: List[Recorded],
    options: AdviseOptions,
    clock: Clock,
    *,
    max_model_len: int,
    found: list[AtBatch],
) -> None:
    """Run the candidate and plain decoding with growing batches, as far as the time reaches.

    found: takes an entry for each of `predicted`, with what was measured where there was time.
    """
    found[:] = predicted
    took = 0.0
    for place, at in enumerate(predicted):
        before = clock.elapsed
        # A larger batch takes longer than the one before it, by a half or so.
        if clock.left(1.0) < 1.5 * took:
            return
        prompts = list(islice(cycle(each.prompt for each in recorded), at.batch))
        ratio, is_reliable = _measured_ratio(
            loaded, candidate, prompts, options, clock, max_model_len
        )
        found[place] = replace(at, measured=ratio, is_reliable=is_reliable)
        took = clock.elapsed - before


def _measured_ratio(
    loaded: LoadedModel,
    candidate: Candidate,
    prompts: List[tuple[int, ...]],
    options: AdviseOptions,
    clock: Clock,
    max_model_len: int,
) -> tuple[float | None, bool]:
    """(ratio, whether it can be right), over two rounds, each beginning with the other of the two;
    None where nothing came."""
    engines = [
        KeptEngine(
            loaded, config, name=name, max_model_len=max_model_len, max_num_seqs=len(prompts)
        )
        for name, config in (("plain", PLAIN_CONFIG), (candidate.name, candidate.config))
    ]
    params = options.params(min(_BATCH_TOKENS, options.max_tokens), ignore_eos=True)
    runs = [Runs(), Runs()]
    try:
        if min(engine.llm.state().num_rows for engine in engines) < len(prompts):
            return None, True  # they would run one after another
        for engine in engines:
            run_once(engine, prompts, options.params(8, ignore_eos=True), Runs(), 0)
        for order in ((0, 1), (1, 0)):
            for i in order:
                run_once(engines[i], prompts, params, runs[i], 0)
                clock.tick()
    finally:
        for engine in engines:
            engine.close()
    plain, own = (each.speeds.get(0, []) for each in runs)
    ratios = [b / a for a, b in zip(plain, own, strict=False)]
    if not ratios:
        return None, True
    ratio = geometric_mean(ratios)
    return ratio, is_possible(ratio, expected_of(runs[1], [0]))
