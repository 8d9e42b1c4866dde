"""Running the study: everything in turn, in rounds, until the time is used up.

A round takes one prompt. Plain decoding answers it twice, and every draft once with every length,
in a new random order; each draft answers it once more to be recorded, and v(n) is measured again.
So a machine that slows down meets all alike, and what is compared was measured at the same time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from collections.abc import Sequence as List
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import zip_longest

from outpace import SamplingParams
from outpace.engine.instruments import Judge
from outpace.errors import OptionError
from outpace.measure.experiment.drafts import StudiedDraft
from outpace.measure.experiment.meter import StepMeter
from outpace.measure.experiment.options import MAX_PROMPT_TOKENS, ExperimentOptions
from outpace.measure.experiment.results import (
    DraftRuns,
    ExperimentResults,
    LengthRuns,
    TimedAnswer,
)
from outpace.measure.kept import KeptEngine
from outpace.measure.passes import measure_passes
from outpace.measure.prompts import BUILT_IN, BenchPrompt, pick_questions
from outpace.measure.provenance import describe
from outpace.measure.timing import PLAIN_CONFIG
from outpace.models.load import LoadedModel
from outpace.verification.judge import verify

Progress = Callable[[str, float], object]
"""Called with what is being done and with the share of the promised time that has passed."""

WARM_UP_TOKENS = 8
PASSES_AT_FIRST, PASSES_A_ROUND = 10, 4
PASS_CONTEXT_LEN = 160
"""Cached tokens before a timed pass: about what the answers of the study have before them."""
_MOST_PROMPTS = 1000


@dataclass(slots=True)
class _Way:
    """One way to decode, ready to run, and where its answers go."""

    engine: KeptEngine
    meter: StepMeter
    runs: LengthRuns


def run_experiment(
    target: LoadedModel,
    drafts: List[StudiedDraft],
    options: ExperimentOptions,
    results: ExperimentResults,
    progress: Progress = lambda doing, share: None,
    judge: Judge = verify,
) -> None:
    """Measure all drafts against plain decoding, filling `results` on the way.

    judge: what decides drafts; another than `verify` only to see its faults found.
    Raises OptionError where no prompt fits.
    """
    started = time.perf_counter()
    rng = random.Random(options.seed)
    prompts = _prompts(target, options)
    clock = _Clock(started, 60 * options.minutes, progress)
    _describe(target, options, results)
    with ExitStack() as opened:
        plain, ways = _open(target, drafts, options, results, judge, opened)
        _warm_up([plain, *ways], prompts[0], options, clock)
        _time_passes(target, options, results, PASSES_AT_FIRST, clock)
        slowest = 0.0
        while not results.num_rounds or clock.has_time_for(slowest):
            began = time.perf_counter()
            prompt = prompts[results.num_rounds % len(prompts)]
            _round(plain, ways, prompt, options, rng, clock)
            _time_passes(target, options, results, PASSES_A_ROUND, clock)
            results.num_rounds += 1
            results.elapsed_s = clock.elapsed_s
            slowest = max(slowest, time.perf_counter() - began)
    results.elapsed_s = clock.elapsed_s
    results.complete = True


@dataclass(frozen=True, slots=True)
class _Clock:
    started: float
    limit_s: float
    progress: Progress

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    def has_time_for(self, seconds: float) -> bool:
        return self.elapsed_s + seconds <= self.limit_s

    def tell(self, doing: str) -> None:
        self.progress(doing, min(1.0, self.elapsed_s / self.limit_s))


def _prompts(target: LoadedModel, options: ExperimentOptions) -> list[BenchPrompt]:
    """One of each category in turn."""
    room = target.max_len - options.max_tokens
    questions = pick_questions(
        list(options.prompts) or [BUILT_IN],
        target.tokenizer,
        per_category=_MOST_PROMPTS,
        max_tokens=min(MAX_PROMPT_TOKENS, room),
        seed=options.seed,
    )
    by_category: dict[str, list[BenchPrompt]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question.prompt(target.tokenizer))
    return [p for row in zip_longest(*by_category.values()) for p in row if p is not None]


def _describe(target: LoadedModel, options: ExperimentOptions, results: ExperimentResults) -> None:
    results.provenance = describe()
    results.target = {
        "name": target.name,
        "fingerprint": target.fingerprint,
        "dtype": target.dtype,
        "runs_on": target.runs_on,
        "num_layers": target.decoder.num_layers,
    }
    results.options = asdict(options) | {
        "lengths": list(options.lengths),
        "trained": str(options.trained) if options.trained else None,
        "prompts": [path.name for path in options.prompts],
    }


def _open(
    target: LoadedModel,
    drafts: List[StudiedDraft],
    options: ExperimentOptions,
    results: ExperimentResults,
    judge: Judge,
    opened: ExitStack,
) -> tuple[_Way, list[_Way]]:
    """Plain decoding, and every draft with every length, with their places in the results."""
    max_model_len = min(target.max_len, MAX_PROMPT_TOKENS + options.max_tokens)

    def way(config: dict[str, object], name: str, runs: LengthRuns, meter: StepMeter) -> _Way:
        engine = KeptEngine(
            target,
            config,
            name=name,
            max_model_len=max_model_len,
            instruments=meter.instruments,
        )
        opened.callback(engine.close)
        runs.times = meter.times
        return _Way(engine, meter, runs)

    plain = way(dict(PLAIN_CONFIG), "plain", results.plain, StepMeter(0))
    ways = []
    for draft in drafts:
        found = DraftRuns(draft.label, draft.kind, draft.description)
        results.drafts.append(found)
        for k in sorted(set(options.lengths)):
            runs, meter = LengthRuns(k), StepMeter(k, judge)
            found.lengths.append(runs)
            found.agreement = meter.agreement  # in the end that of the greatest length
            ways.append(way(draft.with_length(k), f"{draft.label}, k = {k}", runs, meter))
    return plain, ways


def _warm_up(
    ways: List[_Way], prompt: BenchPrompt, options: ExperimentOptions, clock: _Clock
) -> None:
    params = SamplingParams(temperature=options.temperature, max_tokens=WARM_UP_TOKENS)
    for way in ways:
        clock.tell(f"warming up: {way.engine.name}")
        way.engine.generate(prompt.token_ids, params)
        way.meter.times.clear()


def _round(
    plain: _Way,
    ways: List[_Way],
    prompt: BenchPrompt,
    options: ExperimentOptions,
    rng: random.Random,
    clock: _Clock,
) -> None:
    params = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens)
    longest = max(way.runs.k for way in ways)
    timed = [(way, False) for way in (plain, plain, *ways)]
    recorded = [(way, True) for way in ways if way.runs.k == longest]
    tasks = timed + recorded
    rng.shuffle(tasks)
    for way, is_recording in tasks:
        clock.tell(f"{prompt.category}: {way.engine.name}")
        way.meter.recording = is_recording
        timing = way.engine.generate(prompt.token_ids, params)
        if is_recording or not timing.step_lens:
            continue
        way.runs.answers.append(
            TimedAnswer(
                prompt.label,
                sum(timing.step_lens[1:]),
                timing.total_s - timing.ttft_s,
                timing.stats,
            )
        )


def _time_passes(
    target: LoadedModel,
    options: ExperimentOptions,
    results: ExperimentResults,
    repeats: int,
    clock: _Clock,
) -> None:
    clock.tell("passes over 1 and more rows")
    rows = sorted({1, *(k + 1 for k in options.lengths)})
    context_len = min(PASS_CONTEXT_LEN, target.max_len - rows[-1])
    if context_len < 1:
        raise OptionError(f"{target.name} takes {target.max_len} tokens, too few to measure on")
    measure_passes(
        target,
        rows=rows,
        context_lens=[context_len],
        repeats=repeats,
        seed=options.seed + results.num_rounds,
        results=results.passes,
        tick=lambda: None,
    )
