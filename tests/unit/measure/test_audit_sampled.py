"""What a sample can show, said beforehand, and what is made of one."""

from __future__ import annotations

import numpy as np
import pytest

from outpace.measure.audit.results import LOSSLESS, SAYS_LITTLE, VIOLATION
from outpace.measure.audit.sampled import Sample, detectable_bias, pooled, promise, sampled_checks
from outpace.measure.audit.subject import AuditPrompt
from outpace.measure.audit.text_law import TextLaw
from outpace.measure.statistics import chi_square, hardest_bias

LEVEL = 0.001
PROMPTS = [AuditPrompt("a", (1,)), AuditPrompt("b", (2,))]


def law(*masses: float) -> TextLaw:
    return TextLaw({(i,): mass for i, mass in enumerate(masses)} | {(): 1 - sum(masses)}, {})


LAWS = [law(0.3, 0.25, 0.2, 0.15), law(0.5, 0.3, 0.1)]


def sample(*shares: np.ndarray, num: int, num_drafts: int = 1000) -> Sample:
    drawn = Sample(LAWS)
    for i, share in enumerate(shares):
        drawn.counts[i] = np.round(share * num).astype(np.int64)
        drawn.stats[i].num_drafts = num_drafts
    return drawn


TRUE = [each.probabilities for each in LAWS]


def test_the_promised_bias_is_found_as_often_as_promised() -> None:
    rng = np.random.default_rng(1)
    shares, num = TRUE[0], 4000
    bias = detectable_bias(shares, num, LEVEL)
    assert bias is not None
    assert 0.02 < bias < 0.06
    for distance, least, most in ((bias, 0.85, 0.96), (bias / 2, 0.0, 0.5), (0.0, 0.0, 0.02)):
        wrong = hardest_bias(shares, distance)
        found = np.mean(
            [chi_square(rng.multinomial(num, wrong), shares).p_value < LEVEL for _ in range(400)]
        )
        assert least <= found <= most, (distance, found)


def test_two_percent_needs_the_stated_number_of_samples() -> None:
    """docs/audit.md: over some 20 cells it is about 20,000 answers."""
    cells = np.array([*np.full(20, 0.05), 0.0])
    found = detectable_bias(cells, 20_000, LEVEL)
    assert found is not None
    assert found < 0.025


def test_more_samples_find_smaller_biases() -> None:
    found = [promise(LAWS, num, LEVEL) for num in (200, 2000, 20000)]
    assert all(found)
    assert found == sorted(found, reverse=True)
    assert promise(LAWS, 0, LEVEL) is None
    assert promise([law(1.0)], 100, LEVEL) is None


def test_all_prompts_together_are_one_table() -> None:
    counts, shares = pooled(LAWS, [np.arange(6), np.arange(5)])
    assert counts.sum() == 25
    assert shares.sum() == pytest.approx(1)


def test_a_sample_of_the_law_is_lossless() -> None:
    checks = sampled_checks(sample(*TRUE, num=1000), PROMPTS, LEVEL, "m")
    assert [check.name for check in checks] == ["a", "b", "all prompts"]
    assert {check.verdict for check in checks} == {LOSSLESS}
    assert checks[-1].num_samples == 2000
    assert {check.method for check in checks} == {"m"}


def test_a_biased_prompt_is_found() -> None:
    wrong = hardest_bias(TRUE[0], 0.1)
    checks = sampled_checks(sample(wrong, TRUE[1], num=2000), PROMPTS, LEVEL, "m")
    assert [check.verdict for check in checks] == [VIOLATION, LOSSLESS, VIOLATION]


def test_a_bias_that_is_small_in_each_prompt_is_found_in_all() -> None:
    wrong = [hardest_bias(each, 0.025) for each in TRUE]
    checks = sampled_checks(sample(*wrong, num=10_000), PROMPTS, LEVEL, "m")
    assert checks[-1].p_value is not None
    assert checks[-1].p_value <= min(check.p_value or 0 for check in checks[:-1])
    assert checks[-1].verdict == VIOLATION


def test_one_impossible_answer_is_a_violation() -> None:
    drawn = sample(*TRUE, num=1000)
    drawn.counts[1][-1] += 1
    checks = sampled_checks(drawn, PROMPTS, LEVEL, "m")
    assert checks[1].verdict == VIOLATION
    assert checks[1].num_wrong == 1


def test_without_drafts_it_says_little() -> None:
    checks = sampled_checks(sample(*TRUE, num=1000, num_drafts=3), PROMPTS, LEVEL, "m")
    assert {check.verdict for check in checks} == {SAYS_LITTLE}
