"""What steps cost here: passes over n rows by themselves, and steps of engines as they really run.

A pass costs more or less than it does by itself according to what ran before it: weights of a small
model stay in the processor's cache while nothing else wants it, and a drafter does. So the shape of
v(n) is taken from passes made one after the other in random order, and its scale, with the time of
drafting and the rest of a step, from short runs of each candidate.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from outpace import SamplingParams
from outpace.engine.instruments import Instruments
from outpace.measure.formulas import PassCosts
from outpace.measure.kept import KeptEngine
from outpace.measure.methods import Config
from outpace.measure.passes import PassTimes, measure_passes
from outpace.measure.timing import PLAIN_CONFIG
from outpace.models.load import LoadedModel
from outpace.types import Draft, Scores, Sequence, StepTimes, Verdict
from outpace.verification.judge import verify
from outpace.verification.lossy import TypicalAcceptance

ROWS = tuple(range(1, 18))
"""Numbers of rows of which v(n) is measured in any case."""
MORE_ROWS = (24, 32, 48, 64, 96, 128)
"""And those for batches, as far as they are wanted."""
_TRIMMED = 0.25
_salts = itertools.count()


@dataclass(frozen=True, slots=True)
class PassCurve:
    """What a pass over n rows takes by itself. one_row_ms: over one row; v: in such passes.

    tree_factor: what a tree of as many rows takes, in passes over a chain.
    """

    one_row_ms: float
    v: PassCosts
    tree_factor: float = 1.0

    def ms(self, num_rows: int, *, is_tree: bool = False) -> float:
        return self.one_row_ms * self.v.at(num_rows) * (self.tree_factor if is_tree else 1.0)


def measure_curve(
    loaded: LoadedModel,
    *,
    context_len: int,
    most_rows: int,
    repeats: int,
    with_trees: bool,
    tick: Callable[[], None] = lambda: None,
) -> PassCurve:
    """Time passes over 1 to `most_rows` rows after `context_len` tokens, or as many as leave room.

    At least over `ROWS`, and with MORE_ROWS in between. tick: called after every pass; what it
    raises ends the measurement.
    """
    rows = [*ROWS, *(n for n in MORE_ROWS if n <= most_rows)]
    rows = [n for n in rows if 2 * n <= loaded.max_len]
    context_len = min(context_len, loaded.max_len - rows[-1])
    times: list[PassTimes] = []
    measure = {"repeats": repeats, "seed": 0, "context_lens": [context_len], "tick": tick}
    measure_passes(loaded, rows=rows, results=times, **measure)  # type: ignore[arg-type]
    if with_trees:
        few = [n for n in rows if n in (5, 9, 17)]
        shapes = ("chain", "tree")
        measure_passes(loaded, rows=few, results=times, shapes=shapes, **measure)  # type: ignore[arg-type]
    return curve_of(times)


def curve_of(times: List[PassTimes]) -> PassCurve:
    """The curve that measured times give: medians over repetitions."""
    by_kind: dict[tuple[str, int], list[float]] = {}
    for each in times:
        by_kind.setdefault((each.shape, each.num_rows), []).extend(each.seconds)
    medians = {kind: median(seconds) for kind, seconds in by_kind.items() if seconds}
    chains = {rows: s for (shape, rows), s in medians.items() if shape == "chain"}
    trees = {rows: s for (shape, rows), s in medians.items() if shape == "tree"}
    factors = [s / chains[rows] for rows, s in trees.items()]
    return PassCurve(
        1000 * chains[1], PassCosts.measured(chains), max(1.0, median(factors)) if factors else 1.0
    )


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step as it ran. num_seqs, num_rows: of its pass. wall_s: since the step before it."""

    num_seqs: int
    num_rows: int
    draft_s: float
    target_s: float
    wall_s: float


class StepLog:
    """Instruments that change nothing and keep what every step took."""

    def __init__(self) -> None:
        self.steps: list[TimedStep] = []
        self._shape = (0, 0, False)
        self._previous: float | None = None

    @property
    def instruments(self) -> Instruments:
        return Instruments(judge=self._judge, timed=self._timed)

    def begin(self) -> None:
        """What comes now has no step before it."""
        self._previous = None

    def _judge(
        self,
        scores: Scores,
        seqs: List[Sequence],
        drafts: List[Draft],
        rng: np.random.Generator,
        lossy: TypicalAcceptance | None = None,
    ) -> list[Verdict]:
        num_rows = sum(rows.stop - rows.start for rows in scores.rows)
        num_fed = sum(fed.stop - fed.start for fed in scores.fed)
        self._shape = (len(seqs), num_rows, num_rows == num_fed)
        return verify(scores, seqs, drafts, rng, lossy)

    def _timed(self, times: StepTimes) -> None:
        now = time.perf_counter()
        previous, self._previous = self._previous, now
        num_seqs, num_rows, is_decoding = self._shape
        if previous is not None and is_decoding:
            self.steps.append(
                TimedStep(num_seqs, num_rows, times.draft_s, times.target_s, now - previous)
            )


@dataclass(frozen=True, slots=True)
class StepCost:
    """What the steps of one candidate take, in milliseconds.

    plain_scale, scale: its passes without drafts and with them, in passes over as many rows by
    themselves. rest_ms: all beside drafter and pass, the time between steps included.
    """

    draft_ms: float
    plain_scale: float
    scale: float
    rest_ms: float

    def pass_ms(self, alone_ms: float, *, has_draft: bool) -> float:
        """alone_ms: what the pass takes by itself."""
        return alone_ms * (self.scale if has_draft else self.plain_scale)


def costs_of(
    steps: Mapping[int, List[TimedStep]], curve: PassCurve, *, is_tree: bool = False
) -> dict[int, StepCost]:
    """By number of draft tokens: what steps with at most so many cost.

    steps: those that were timed, by the same number; numbers without any are left out. What passes
    cost is a matter of what runs between them, and taken from all steps together.
    """
    scales: dict[bool, list[float]] = {False: [], True: []}
    for step in (step for timed in steps.values() for step in timed):
        has_draft = step.num_rows > step.num_seqs
        alone_ms = curve.ms(step.num_rows, is_tree=is_tree and has_draft)
        scales[has_draft].append(1000 * step.target_s / alone_ms)
    plain, drafted = scales[False] or scales[True], scales[True] or scales[False]
    return {
        k: StepCost(
            draft_ms=1000 * trimmed_mean([step.draft_s for step in timed]),
            plain_scale=trimmed_mean(plain),
            scale=trimmed_mean(drafted),
            rest_ms=1000 * trimmed_mean([s.wall_s - s.draft_s - s.target_s for s in timed]),
        )
        for k, timed in steps.items()
        if timed
    }


def trimmed_mean(values: List[float]) -> float:
    """The mean of the middle half of the values: a machine that others use too has steps that took
    ten times as long for no reason of ours."""
    ordered = sorted(values)
    cut = int(len(ordered) * _TRIMMED)
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


@dataclass(slots=True)
class TimedEngine:
    """An engine of a candidate whose steps are kept. is_tree: whether its drafts branch."""

    engine: KeptEngine
    log: StepLog
    is_tree: bool
    by_length: dict[int, list[TimedStep]] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        loaded: LoadedModel,
        config: Config,
        *,
        name: str,
        max_model_len: int,
        batch: int,
        is_tree: bool = False,
    ) -> TimedEngine:
        log = StepLog()
        engine = KeptEngine(
            loaded,
            config,
            name=name,
            max_model_len=max_model_len,
            max_num_seqs=batch,
            instruments=log.instruments,
        )
        return cls(engine, log, is_tree)

    def run(
        self, prompts: List[tuple[int, ...]], params: SamplingParams, *, length: int | None = None
    ) -> None:
        """Answer these prompts together with at most `length` draft tokens a step (None: the
        engine's own number), and keep the steps in which all took part."""
        self.log.begin()
        before = len(self.log.steps)
        requests = [
            {"prompt_token_ids": list(prompt), "cache_salt": f"cost {next(_salts)}"}
            for prompt in prompts
        ]
        asked = True if length is None else {"num_speculative_tokens": length}
        self.engine.llm.generate(requests, params, speculative=asked)
        steps = [step for step in self.log.steps[before:] if step.num_seqs == len(prompts)]
        self.by_length.setdefault(length or 0, []).extend(steps)

    def costs(self, curve: PassCurve) -> dict[int, StepCost]:
        """By number of draft tokens, 0 for the engine's own."""
        return costs_of(self.by_length, curve, is_tree=self.is_tree)


def plain_engine(loaded: LoadedModel, *, max_model_len: int, batch: int) -> TimedEngine:
    """Plain decoding, timed."""
    return TimedEngine.open(
        loaded, PLAIN_CONFIG, name="plain", max_model_len=max_model_len, batch=batch
    )


def between(costs: Mapping[int, StepCost], length: int) -> StepCost:
    """The cost with `length` draft tokens from those measured: linear between, the nearest
    beyond."""
    lengths = sorted(costs)
    if length in costs:
        return costs[length]
    lower = max((n for n in lengths if n < length), default=None)
    upper = min((n for n in lengths if n > length), default=None)
    if lower is None or upper is None:
        return costs[upper if lower is None else lower]  # type: ignore[index]
    share = (length - lower) / (upper - lower)
    low, high = costs[lower], costs[upper]
    return replace(
        low,
        draft_ms=low.draft_ms + share * (high.draft_ms - low.draft_ms),
        rest_ms=low.rest_ms + share * (high.rest_ms - low.rest_ms),
    )
