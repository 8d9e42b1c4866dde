"""Seeded texts that differ: a race that rounding decides is a tie, and nothing else is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from audit_cases import MODEL, subject

from outpace import SamplingParams
from outpace.measure.audit.results import VIOLATION
from outpace.measure.audit.same_text import Answer, Compared, _race_gap, compare, text_check
from outpace.measure.audit.subject import AuditPrompt
from outpace.measure.audit.text_law import NextToken
from outpace.outputs import SpeculationStats
from outpace.verification.coupled import arrivals, choose

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
TOLERANCE = 0.01
SEED, POSITION = 7, 3
PARAMS = SamplingParams(seed=SEED)
PROMPT = AuditPrompt("p", (2, 3, 4))


def tied_row(gap: float) -> tuple[np.ndarray, int, int]:
    """A row whose race its first token wins by `gap`, and the first two tokens to arrive."""
    p = np.full(16, 1 / 16)
    first, second = arrivals(p, SEED, 0, POSITION, 2)
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        moved = p.copy()
        moved[second] *= math.exp(middle)
        low, high = (low, middle) if choose(moved, SEED, 0, POSITION) == second else (middle, high)
    p[second] *= math.exp(high - gap)
    return p, first, second


def test_the_gap_of_a_race_is_measured() -> None:
    p, first, second = tied_row(0.004)
    assert choose(p, SEED, 0, POSITION) == first
    after = NextToken(p, frozenset())
    gap = _race_gap(after, [first, second], PARAMS, POSITION, TOLERANCE)
    assert gap == pytest.approx(0.004, rel=1e-3)


def test_what_rounding_cannot_do_has_no_gap() -> None:
    p, first, second = tied_row(0.5)
    after = NextToken(p, frozenset())
    assert _race_gap(after, [first, second], PARAMS, POSITION, TOLERANCE) is None
    other = next(t for t in range(16) if t not in (first, second))
    assert _race_gap(after, [first, other], PARAMS, POSITION, TOLERANCE) is None
    assert _race_gap(after, [first, None], PARAMS, POSITION, TOLERANCE) is None


def test_a_forbidden_token_is_no_tie_unless_it_is_at_the_edge() -> None:
    p, first, second = tied_row(0.0)
    p = np.where(np.arange(16) == second, 0, p)
    forbidden = NextToken(p, frozenset())
    assert _race_gap(forbidden, [first, second], PARAMS, POSITION, TOLERANCE) is None


def answer(seed: int | None, *token_ids: int) -> Answer:
    return Answer(PROMPT, seed, token_ids)


def test_equal_texts_have_no_difference() -> None:
    assert compare(MODEL, answer(1, 5, 6), answer(1, 5, 6), PARAMS) is None


@pytest.mark.parametrize("seed", [None, SEED])
def test_another_token_is_a_violation(seed: int | None) -> None:
    params = SamplingParams(seed=seed, temperature=0.7 if seed else 0)
    found = compare(MODEL, answer(seed, 5, 6, 7), answer(seed, 5, 6, 8), params)
    assert found is not None
    assert (found.index, found.plain_token, found.other_token, found.is_tie) == (2, 7, 8, False)
    assert "VIOLATION" in found.in_words(PROMPT, MODEL)
    check = text_check(
        subject({"method": "suffix"}),
        "suffix",
        "one at a time",
        [answer(seed, 5), answer(seed, 5, 6, 7)],
        [answer(seed, 5), answer(seed, 5, 6, 8)],
        [params] * 2,
        SpeculationStats(num_drafts=3),
    )
    assert (check.num_samples, check.num_wrong, check.verdict) == (2, 1, VIOLATION)
    assert check.kind == ("seeded" if seed else "greedy")
    assert len(check.differences) == 1


def test_words_for_a_tie_and_for_an_end() -> None:
    said = Compared(4, 5, None, 0.25, 0.5, True).in_words(PROMPT, MODEL)
    assert "the end at output token 4, gap 0.25, rounding reaches 0.5: rounding tie" in said
