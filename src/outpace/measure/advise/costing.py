"""Timing every candidate: v(n) first, then steps as they run."""

from __future__ import annotations

from collections.abc import Sequence as List
from contextlib import ExitStack
from statistics import median

from outpace.measure.advise.candidates import Family
from outpace.measure.advise.costs import (
    MORE_ROWS,
    ROWS,
    StepCost,
    TimedEngine,
    between,
    measure_curve,
    plain_engine,
)
from outpace.measure.advise.options import AdviseOptions, Clock
from outpace.measure.advise.predict import Machine
from outpace.measure.advise.replay import Recorded
from outpace.measure.advise.verifying import groups_of
from outpace.models.load import LoadedModel

CURVE_SHARE, COSTED = 0.07, 0.55
"""The share of the time for v(n), and that at which the steps of candidates are timed no more."""
_COST_TOKENS = 32
_WARM_TOKENS = 8
_MOST_COST_GROUPS = 6


def measure_costs(
    loaded: LoadedModel,
    families: List[Family],
    options: AdviseOptions,
    clock: Clock,
    recorded: List[Recorded],
    step_s: float,
    *,
    max_model_len: int,
) -> tuple[Machine, dict[str, StepCost]]:
    """v(n), and what steps of plain decoding and of every candidate take as they run, by name.

    step_s: of a plain step, about.
    """
    clock.stage("timing passes, v(n)")
    contexts = [len(each.prompt) + len(each.answer) // 2 for each in recorded]
    longest = max((family.longest.k for family in families), default=1)
    repeats = int(CURVE_SHARE * options.seconds / (2.5 * len(ROWS) * step_s))
    curve = measure_curve(
        loaded,
        context_len=int(median(contexts)),
        most_rows=MORE_ROWS[-3] if not options.quick else options.batch * (min(longest, 4) + 1),
        repeats=max(3, min(12, repeats)),
        with_trees=any(family.longest.is_tree for family in families),
        tick=clock.tick,
    )
    clock.stage("timing steps of every candidate")
    engines: list[tuple[Family | None, TimedEngine]] = []
    costs: dict[str, StepCost] = {}
    with ExitStack() as opened:
        common = {"max_model_len": max_model_len, "batch": options.batch}
        engines.append((None, plain_engine(loaded, **common)))
        for family in families:
            own = TimedEngine.open(
                loaded,
                family.longest.config,
                name=family.longest.name,
                is_tree=family.longest.is_tree,
                **common,
            )
            engines.append((family, own))
        for _, each in engines:
            opened.callback(each.engine.close)
        for _, each in engines:
            each.engine.check_rows(options.batch)
        _run_all(engines, recorded, options, clock, step_s)
        plain = engines[0][1].costs(curve)[0]
        for own_family, each in engines:
            if own_family is not None:
                timed = each.costs(curve)
                for candidate in own_family.candidates:
                    costs[candidate.name] = between(timed, candidate.k)
    return Machine(curve, plain, options.batch), costs


def lengths_to_time(family: Family) -> list[int]:
    """Lengths of which steps are timed: the ends, and one between of many."""
    lengths = family.lengths
    return sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})


def _run_all(
    engines: List[tuple[Family | None, TimedEngine]],
    recorded: List[Recorded],
    options: AdviseOptions,
    clock: Clock,
    step_s: float,
) -> None:
    """Short answers by every engine with every length in turn, until time is up."""
    groups = groups_of([each.prompt for each in recorded], options.batch)[:_MOST_COST_GROUPS]
    ways = [
        (each, length)
        for family, each in engines
        for length in ([0] if family is None else lengths_to_time(family))
    ]
    # A first turn, warming up included, in about half of the time that is left for this.
    num_tokens = int(0.5 * clock.left(COSTED) / (1.5 * len(ways) * step_s)) - _WARM_TOKENS
    num_tokens = max(_WARM_TOKENS, min(_COST_TOKENS, options.max_tokens, num_tokens))
    params = options.params(num_tokens, ignore_eos=True)
    for each, length in ways:
        each.run(groups[0], options.params(_WARM_TOKENS, ignore_eos=True), length=length or None)
    for each, _ in ways:
        each.by_length.clear()
    for turn, group in enumerate(groups):
        if turn and clock.left(COSTED) < 0:
            return
        start = turn % len(ways)
        for each, length in [*ways[start:], *ways[:start]]:
            each.run(group, params, length=length or None)
            clock.tick()
