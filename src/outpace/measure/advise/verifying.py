"""The best candidates and plain decoding, run in turn: what was predicted, checked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace

import numpy as np

from outpace import SamplingParams
from outpace.measure.advise.candidates import Candidate
from outpace.measure.advise.findings import Measured
from outpace.measure.advise.options import Clock
from outpace.measure.advise.replay import Recorded
from outpace.measure.kept import KeptEngine
from outpace.measure.methods import PLAIN
from outpace.measure.statistics import geometric_mean
from outpace.measure.timing import PLAIN_CONFIG
from outpace.models.load import LoadedModel
from outpace.outputs import SpeculationStats

_WARM_TOKENS = 24


@dataclass(slots=True)
class Runs:
    """One method's runs. speeds: tokens per second of decoding, by group of prompts, a value for
    every round. answers: the ids of each group's first round. later: by group, output tokens after
    the first of each answer, and the passes that they took."""

    speeds: dict[int, list[float]] = field(default_factory=dict)
    answers: dict[int, list[list[int]]] = field(default_factory=dict)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    later: dict[int, tuple[int, int]] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0


def run_once(
    engine: KeptEngine, prompts: List[tuple[int, ...]], params: SamplingParams, runs: Runs, key: int
) -> None:
    """Answer the prompts together and note how fast that was."""
    if len(prompts) == 1:
        timing = engine.generate(prompts[0], params)
        first = timing.step_lens[0] if timing.step_lens else 0
        tokens, seconds = len(timing.token_ids) - first, timing.total_s - timing.ttft_s
        answers, stats = [timing.token_ids], [timing.stats]
    else:
        batch = engine.generate_batch(prompts, [params] * len(prompts))
        tokens, seconds = batch.window_tokens, batch.window_s
        answers = [answer.token_ids for answer in batch.answers]
        stats = [answer.stats for answer in batch.answers]
    if tokens > 0 and seconds > 0:
        runs.speeds.setdefault(key, []).append(tokens / seconds)
        runs.tokens, runs.seconds = runs.tokens + tokens, runs.seconds + seconds
    runs.answers.setdefault(key, answers)
    num_tokens, num_steps = runs.later.get(key, (0, 0))
    for each in stats:
        runs.stats.add(each)
        num_tokens += each.num_output_tokens - 1
        num_steps += each.num_steps - 1
    runs.later[key] = num_tokens, num_steps


def expected_of(runs: Runs, keys: List[int]) -> float | None:
    """E over groups of prompts, each counting as much as it does in a ratio; None where no answer
    had a second step."""
    found = [runs.later[key] for key in keys]
    lengths = [tokens / steps for tokens, steps in found if tokens > 0 and steps > 0]
    return geometric_mean(np.array(lengths)).mean if lengths else None


def measure(
    loaded: LoadedModel,
    candidates: List[Candidate],
    recorded: List[Recorded],
    params: SamplingParams,
    clock: Clock,
    *,
    batch: int,
    share: float,
    most_rounds: int,
    max_model_len: int,
    found: list[Measured],
) -> None:
    """Run plain decoding and every candidate on the same prompts, in rotating order.

    found: filled after every round over the prompts, and when it is interrupted, from the groups
    that all have run. share: of the time, at which no further group is begun. Prompts are taken
    `batch` at a time, from the front again if need be.
    """
    engines = {
        name: KeptEngine(loaded, config, name=name, max_model_len=max_model_len, max_num_seqs=batch)
        for name, config in ((PLAIN, PLAIN_CONFIG), *((c.name, c.config) for c in candidates))
    }
    runs = {name: Runs() for name in engines}
    groups = groups_of([each.prompt for each in recorded], batch)
    has_one_answer = params.is_greedy or params.seed is not None
    try:
        _warm_up(engines, groups[0], params)
        for turn, key in enumerate(itertools.chain(*[range(len(groups))] * most_rounds)):
            if turn and clock.left(share) < 0:
                break
            order = [*engines][turn % len(engines) :] + [*engines][: turn % len(engines)]
            for name in order:
                run_once(engines[name], groups[key], params, runs[name], key)
                clock.tick()
    finally:
        for engine in engines.values():
            engine.close()
        found[:] = [
            measured_of(c, runs[c.name], runs[PLAIN], has_one_answer, batch, len(recorded))
            for c in candidates
            if common_keys(runs[c.name], runs[PLAIN])
        ]


def groups_of(prompts: List[tuple[int, ...]], batch: int) -> list[list[tuple[int, ...]]]:
    """The prompts `batch` at a time; the last group is filled up from the front."""
    cycle = itertools.cycle(prompts)
    return [[next(cycle) for _ in range(batch)] for _ in range(math.ceil(len(prompts) / batch))]


def common_keys(runs: Runs, plain: Runs) -> list[int]:
    return [key for key in plain.speeds if key in runs.speeds]


def measured_of(
    candidate: Candidate,
    runs: Runs,
    plain: Runs,
    has_one_answer: bool,
    batch: int,
    num_prompts: int,
) -> Measured:
    """What the runs of a candidate come to; round by round, so that a drift meets both alike."""
    members = (key * batch + i for key in common_keys(runs, plain) for i in range(batch))
    ratios = []
    for key in common_keys(runs, plain):
        pairs = zip(runs.speeds[key], plain.speeds[key], strict=False)
        ratios.append(math.exp(float(np.mean([math.log(own / base) for own, base in pairs]))))
    compared = [key for key in plain.answers if key in runs.answers] if has_one_answer else []
    pairs_of_ids = [
        pair for key in compared for pair in zip(runs.answers[key], plain.answers[key], strict=True)
    ]
    return Measured(
        candidate=candidate,
        ratio=geometric_mean(np.array(ratios)),
        tokens_per_s=runs.tokens / runs.seconds,
        plain_tokens_per_s=plain.tokens / plain.seconds,
        acceptance_length=runs.stats.acceptance_length,
        num_rounds=max(len(speeds) for speeds in runs.speeds.values()),
        num_equal=sum(own == base for own, base in pairs_of_ids),
        num_compared=len(pairs_of_ids),
        places=tuple(dict.fromkeys(member % num_prompts for member in members)),
        expected=expected_of(runs, common_keys(runs, plain)),
    )


def _warm_up(
    engines: dict[str, KeptEngine], prompts: List[tuple[int, ...]], params: SamplingParams
) -> None:
    few = replace(params, max_tokens=min(_WARM_TOKENS, params.max_tokens or _WARM_TOKENS))
    for engine in engines.values():
        run_once(engine, prompts, few, Runs(), 0)
