"""Trials: the trained drafter is asked again where it has not been for long."""

from __future__ import annotations

from collections.abc import Sequence as List

from outpace.control.goodput import NONE, TRAINED, Plan, Ways
from outpace.control.probing import Probing

PROBE_TOKENS = 2
"""Tokens of a draft that is made to see whether the trained drafter pays by now."""


def with_trials(
    decided: Plan,
    probing: Probing,
    prices: List[tuple[int, float]],
    ways: List[Ways],
    curve: List[float],
    trained_s: List[float],
) -> Plan:
    """The same plan, but that requests that are due, and were to get nothing, get a short draft by
    the trained drafter. Counts the step for all that get none.

    prices: for each request its `seq_id`, and how many plain steps' time the drafter needs to read
    its text first. curve, trained_s: see `plan`.
    """
    choices, num_tokens = list(decided.choices), decided.num_tokens
    for i, ((seq_id, price), each) in enumerate(zip(prices, ways, strict=True)):
        if choices[i][0] == TRAINED:
            continue
        probing.tick(seq_id)
        length = min(PROBE_TOKENS, len(each.trained))
        if choices[i][0] == NONE and length and probing.is_due(seq_id, price):
            choices[i] = (TRAINED, length)
            num_tokens += sum(each.trained[:length])
    if choices == decided.choices:
        return decided
    levels = max(length for source, length in choices if source == TRAINED)
    num_drafted = sum(length for _, length in choices)
    return Plan(choices, num_tokens, curve[num_drafted] + trained_s[levels])
