"""Where the time of decoding steps went, and what the speed-up condition makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from outpace.measure.bench.results import BenchRun
from outpace.measure.bench.steps import Step
from outpace.measure.formulas import PassCosts
from outpace.measure.passes import PassTimes

Curves = Mapping[tuple[str, int], PassCosts]
"""v(n) by shape of the passes and number of cached tokens."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Means per decoding step of many runs, in seconds: all requests of a batch together.

    num_rows: tokens fed. rest_s: all of the time that is neither drafting nor target pass, also
    what lies between steps. tokens_per_step: of all requests. draft_token_s: drafting per draft
    token, None if there was none. rows: what each step fed, for `v`.
    """

    num_rows: float
    draft_s: float
    pass_s: float
    rest_s: float
    tokens_per_step: float
    draft_token_s: float | None
    rows: tuple[int, ...]

    @property
    def step_s(self) -> float:
        return self.draft_s + self.pass_s + self.rest_s


def step_costs(runs: Sequence[BenchRun]) -> StepCosts | None:
    """None where no run has steps after the first."""
    longer = [run for run in runs if run.steps and run.timing.window_tokens]
    steps: list[Step] = [step for run in longer for step in run.steps]
    if not steps:
        return None
    draft_s, pass_s = (sum(getattr(step, name) for step in steps) for name in ("draft_s", "pass_s"))
    seconds = sum(run.timing.window_s for run in longer)
    num_drafted = sum(step.num_rows - step.num_seqs for step in steps)
    return StepCosts(
        num_rows=fmean(step.num_rows for step in steps),
        draft_s=draft_s / len(steps),
        pass_s=pass_s / len(steps),
        rest_s=max(0.0, seconds - draft_s - pass_s) / len(steps),
        tokens_per_step=sum(run.timing.window_tokens for run in longer) / len(steps),
        draft_token_s=draft_s / num_drafted if num_drafted else None,
        rows=tuple(step.num_rows for step in steps),
    )


def predicted_ratio(mine: StepCosts, plain: StepCosts, v: Callable[[int], float]) -> float:
    """How many times faster than plain decoding, from the measured tokens per step, drafting and
    rest; of the target passes only the plain ones and v(n) are used, so that the prediction fails
    where passes in a generation cost something else than passes alone.

    E / (draft + v(rows) pass + rest), over the same of plain decoding.
    """
    relative = fmean(map(v, mine.rows)) / fmean(map(v, plain.rows))
    step_s = mine.draft_s + relative * plain.pass_s + mine.rest_s
    return (mine.tokens_per_step / step_s) / (plain.tokens_per_step / plain.step_s)


def pass_curves(passes: Sequence[PassTimes]) -> Curves:
    """v(n) of all passes that were timed."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    for times, v in relative_costs(passes):
        found.setdefault((times.shape, times.context_len), {})[times.num_rows] = v
    return {key: PassCosts.measured(costs) for key, costs in found.items()}


def relative_costs(passes: Sequence[PassTimes]) -> list[tuple[PassTimes, float]]:
    """Of each kind of pass its v(n): the median of the ratios to one row, per repetition."""
    single = {(p.context_len, p.shape): p.seconds for p in passes if p.num_rows == 1}
    found = []
    for times in passes:
        # An interrupted measurement leaves some lists one repetition shorter.
        one_row = single.get((times.context_len, times.shape), [])
        pairs = list(zip(times.seconds, one_row, strict=False))
        if pairs:
            found.append((times, median(seconds / one for seconds, one in pairs)))
    return found


def nearest_curve(curves: Curves, shape: str, context_len: float) -> PassCosts | None:
    """v(n) of a shape after the measured number of cached tokens that is nearest."""
    lengths = [length for own, length in curves if own == shape]
    if not lengths:
        return None
    return curves[shape, min(lengths, key=lambda length: abs(length - context_len))]
