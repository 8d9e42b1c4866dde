"""What a draft is worth on this machine: how much of it is accepted, and what speed that makes.

Each prompt is answered plainly and with every draft length in turn, one request at a time, so that
a drift of the machine meets all alike. From the same runs come the acceptance of the draft (E
output tokens a step), the cost of drafting K tokens and of a target pass over K + 1 rows, both in
passes over one row, and from these the speed-up that they allow:

    S = E / (K c + v(K + 1))

What is measured is less than that by what a step costs besides: choosing tokens, checking them,
bookkeeping.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.engine.metrics import EngineMetrics
from outpace.errors import ContextLengthError, OptionError
from outpace.heads.kinds import speculative_config
from outpace.measure.formulas import speedup
from outpace.outputs import SpeculationStats

if TYPE_CHECKING:
    from outpace import LLM
    from outpace.models.load import LoadedModel
    from outpace.params import SamplingParams

PLAIN = 0
"""The number of draft tokens of plain decoding."""
Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation to answer, and what kind it is."""

    category: str
    messages: tuple[tuple[str, str], ...]

    @property
    def prompt(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.messages]


@dataclass(frozen=True, slots=True)
class Answer:
    """One request.

    tokens, seconds, passes: output tokens, time and target passes after the first step, so that
    reading the prompt is left out. costs: of as many of these passes as could be told apart.
    """

    token_ids: list[int]
    tokens: int
    seconds: float
    passes: int
    costs: EngineMetrics
    stats: SpeculationStats


@dataclass(slots=True)
class Run:
    """All requests with one draft length, added up; stats by category."""

    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0
    costs: EngineMetrics = field(default_factory=EngineMetrics)
    stats: dict[str, SpeculationStats] = field(default_factory=dict)

    def add(self, category: str, answer: Answer) -> None:
        self.tokens += answer.tokens
        self.seconds += answer.seconds
        self.passes += answer.passes
        self.costs = _combined(self.costs, answer.costs, operator.add)
        self.stats.setdefault(category, SpeculationStats()).add(answer.stats)

    @property
    def all_stats(self) -> SpeculationStats:
        total = SpeculationStats()
        for stats in self.stats.values():
            total.add(stats)
        return total

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class LengthResult:
    """One draft length K.

    acceptance_length: output tokens per target pass; by_category likewise. conditional_acceptance:
    by position. draft_cost: of drafting one token, c; pass_cost: of a target pass over K + 1 rows,
    v(K + 1); both in plain target passes. predicted_ratio, measured_ratio: to plain decoding.
    """

    num_speculative_tokens: int
    acceptance_length: float
    conditional_acceptance: list[float]
    by_category: dict[str, float]
    draft_cost: float
    pass_cost: float
    predicted_ratio: float
    measured_ratio: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class DraftQuality:
    """What `measure_draft` found.

    num_left_out: prompts that do not fit in the context. plain_pass_s: seconds of a target pass
    over one row. acceptance_by_category: conditional
    acceptance by position at the longest draft. num_different: greedy answers whose ids differ from
    plain decoding's: rounding where two tokens are nearly tied; None where they were sampled.
    """

    method: str
    num_questions: int
    num_left_out: int
    plain_tokens_per_s: float
    plain_pass_s: float
    lengths: list[LengthResult]
    acceptance_by_category: dict[str, list[float]]
    num_different: int | None

    @property
    def best(self) -> LengthResult:
        """The draft length that was fastest here."""
        return max(self.lengths, key=lambda length: length.measured_ratio)


def measure_draft(
    target: LoadedModel,
    directory: Path,
    questions: List[Question],
    lengths: List[int],
    params: SamplingParams,
    *,
    options: Mapping[str, Any] | None = None,
    progress: Progress = lambda done, total: None,
) -> DraftQuality:
    """Answer all questions plainly and with every draft length, in turn.

    lengths: values of `num_speculative_tokens`. options: further ones of the method (shape, ...).
    progress: called with (requests done, requests in all). Raises ModelError for a directory that
    holds no draft for this target, OptionError where there is nothing to measure.
    """
    lengths = sorted(set(lengths))
    if not questions or not lengths or lengths[0] < 1:
        raise OptionError("measuring a draft takes at least one prompt and one draft length")
    from outpace import LLM

    configs = [
        speculative_config(directory, num_speculative_tokens=k, **(options or {})) for k in lengths
    ]
    with ExitStack() as opened:
        llms = {
            k: opened.enter_context(LLM(target, speculative_config=config, max_num_seqs=1))
            for k, config in zip(lengths, configs, strict=True)
        }
        fitting = _fitting(llms[lengths[0]], questions, params)
        runs, num_different = _run_all(llms, fitting, params, progress)
    comparable = params.is_greedy or params.seed is not None
    num_left_out = len(questions) - len(fitting)
    found = num_different if comparable else None
    return _judged(configs[0]["method"], runs, len(fitting), num_left_out, found)


def _fitting(llm: LLM, questions: List[Question], params: SamplingParams) -> list[Question]:
    """Those whose prompts fit in the context; raises the error of the last one if none does."""
    fitting: list[Question] = []
    for number, question in enumerate(questions, 1):
        try:
            llm.prepare(question.prompt, params)
        except ContextLengthError:
            if number == len(questions) and not fitting:
                raise
        else:
            fitting.append(question)
    return fitting


def _run_all(
    llms: Mapping[int, LLM], questions: List[Question], params: SamplingParams, progress: Progress
) -> tuple[dict[int, Run], int]:
    """(runs by draft length, how many answers differ from the plain one of their question)."""
    order = [PLAIN, *llms]
    runs, num_different = {k: Run() for k in order}, 0
    warm = replace(params, max_tokens=min(8, params.max_tokens or 8))
    for k in order:
        _answer(llms, k, questions[0], warm)
    for turn, question in enumerate(questions):
        answers: dict[int, Answer] = {}
        for place in range(len(order)):
            # Each goes first in turn, so that no length is always measured after the same one.
            k = order[(turn + place) % len(order)]
            answers[k] = _answer(llms, k, question, params)
            runs[k].add(question.category, answers[k])
            progress(turn * len(order) + place + 1, len(questions) * len(order))
        plain = answers[PLAIN].token_ids
        num_different += sum(answer.token_ids != plain for answer in answers.values())
    return runs, num_different


def _answer(llms: Mapping[int, LLM], k: int, question: Question, params: SamplingParams) -> Answer:
    """One request, alone in its engine."""
    llm = llms[k] if k != PLAIN else next(iter(llms.values()))
    started, first, at_first = replace(llm.metrics), 0, None
    with llm.stream(question.prompt, params, speculative=k != PLAIN) as stream:
        for event in stream:
            if at_first is None:
                first, at_first = len(event.token_ids), replace(llm.metrics)
        output = stream.output
    ended = replace(llm.metrics)
    if at_first is None or at_first.num_steps == ended.num_steps:
        at_first = started  # it was over before anyone could look: the first step counts as well
    return Answer(
        token_ids=output.outputs[0].token_ids,
        tokens=output.stats.num_output_tokens - first,
        seconds=output.metrics.total_s - output.metrics.ttft_s,
        passes=output.stats.num_steps - 1,
        costs=_combined(ended, at_first, operator.sub),
        stats=output.stats,
    )


def _combined(
    left: EngineMetrics, right: EngineMetrics, operation: Callable[[Any, Any], Any]
) -> EngineMetrics:
    names = [each.name for each in fields(EngineMetrics)]
    return EngineMetrics(**{n: operation(getattr(left, n), getattr(right, n)) for n in names})


def _judged(
    method: str,
    runs: Mapping[int, Run],
    num_questions: int,
    num_left_out: int,
    num_different: int | None,
) -> DraftQuality:
    plain = runs[PLAIN]
    if not all(run.passes for run in runs.values()):
        raise OptionError("every answer was over after one step; ask for longer ones")
    pass_s = plain.costs.target_s / plain.costs.num_steps
    drafted = {k: run for k, run in runs.items() if k != PLAIN}
    lengths = [_length(k, run, plain, pass_s) for k, run in drafted.items()]
    longest = drafted[max(drafted)]
    return DraftQuality(
        method=method,
        num_questions=num_questions,
        num_left_out=num_left_out,
        plain_tokens_per_s=plain.tokens_per_s,
        plain_pass_s=pass_s,
        lengths=lengths,
        acceptance_by_category={
            category: stats.conditional_acceptance for category, stats in longest.stats.items()
        },
        num_different=num_different,
    )


def _length(k: int, run: Run, plain: Run, pass_s: float) -> LengthResult:
    costs = run.costs
    draft, target = (s / costs.num_steps / pass_s for s in (costs.draft_s, costs.target_s))
    stats = run.all_stats
    return LengthResult(
        num_speculative_tokens=k,
        acceptance_length=stats.acceptance_length,
        conditional_acceptance=stats.conditional_acceptance,
        by_category={name: each.acceptance_length for name, each in run.stats.items()},
        draft_cost=draft / k,
        pass_cost=target,
        predicted_ratio=speedup(run.tokens / run.passes, k, draft / k, target),
        measured_ratio=run.tokens_per_s / plain.tokens_per_s,
        tokens_per_s=run.tokens_per_s,
    )
