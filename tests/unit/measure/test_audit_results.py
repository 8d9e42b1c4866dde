"""The verdict over several checks, and enumeration's findings."""

from __future__ import annotations

import json

import pytest

from outpace.errors import OptionError
from outpace.measure.audit.exact_rules import (
    FALSE_CLAIMS,
    RULES,
    WRONG_RULES,
    enumerate_mistakes,
    enumerate_rule,
)
from outpace.measure.audit.results import (
    ALL_PROMPTS,
    INCOMPLETE,
    LOSSLESS,
    SAYS_LITTLE,
    VIOLATION,
    AuditResult,
    Check,
    Planted,
    SelfTest,
    Verdict,
)
from outpace.measure.audit.run import AuditOptions, promise_in_words
from outpace.measure.audit.subject import AuditPrompt

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def check(kind: str, verdict: Verdict) -> Check:
    return Check(kind, ALL_PROMPTS, "texts", 1, int(verdict == VIOLATION), verdict)


def result_of(checks: list[Check], temperature: float) -> AuditResult:
    sampling = {"temperature": temperature}
    return AuditResult("m", "float32", "torch", "suffix", sampling, 0.001, checks, complete=True)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([check("exact", LOSSLESS), check("sampled", LOSSLESS)], LOSSLESS),
        ([check("sampled", SAYS_LITTLE), check("sampled", LOSSLESS)], LOSSLESS),
        ([check("greedy", LOSSLESS), check("sampled", SAYS_LITTLE)], SAYS_LITTLE),
        ([check("greedy", LOSSLESS), check("seeded", LOSSLESS)], SAYS_LITTLE),
        ([check("greedy", LOSSLESS), check("sampled", VIOLATION)], VIOLATION),
        ([check("exact", VIOLATION), check("greedy", LOSSLESS)], VIOLATION),
        ([check("exact", LOSSLESS), check("greedy", SAYS_LITTLE)], SAYS_LITTLE),
        ([check("exact", LOSSLESS)], SAYS_LITTLE),
    ],
)
def test_verdict(checks: list[Check], verdict: Verdict) -> None:
    result = result_of(checks, temperature=1.0)
    assert result.verdict == verdict
    assert json.loads(json.dumps(result.to_json()))["verdict"] == verdict
    result.complete = False
    assert result.verdict == (VIOLATION if verdict == VIOLATION else INCOMPLETE)


def test_where_nothing_is_to_be_sampled_greedy_texts_decide() -> None:
    assert result_of([check("greedy", LOSSLESS)], temperature=0.0).verdict == LOSSLESS
    assert result_of([check("greedy", SAYS_LITTLE)], temperature=0.0).verdict == SAYS_LITTLE


def test_a_self_test_fails_for_a_missed_fault_and_for_a_false_alarm() -> None:
    def passed(*planted: Planted, complete: bool = True) -> bool:
        test = SelfTest("m", "float32", "torch decoder", 0.001, list(planted), complete=complete)
        assert test.to_json()["passed"] is test.passed
        return test.passed

    caught = Planted("fault", "chi-square", "answers", 256, True)
    missed = Planted("fault", "chi-square", "answers", 4096, False)
    control = Planted("control", "chi-square", "answers", 4096, False, is_control=True)
    alarm = Planted("control", "chi-square", "answers", 512, True, is_control=True)
    assert passed(caught, control)
    assert not passed(caught, missed, control)
    assert not passed(caught, alarm)
    assert not passed(caught, control, complete=False)


@pytest.mark.parametrize("name", RULES)
def test_the_rules_are_exact(name: str) -> None:
    emit, cases = RULES[name]
    ticks: list[int] = []
    found = enumerate_rule(emit, cases(8), lambda: ticks.append(1))
    assert (found.num_models, found.num_biased, found.first_biased) == (8, 0, None)
    assert len(ticks) == 8
    assert found.num_drafts > 8


def test_every_mistake_is_found_by_enumeration() -> None:
    found = enumerate_mistakes(8, lambda: None)
    assert found.keys() == WRONG_RULES.keys() | FALSE_CLAIMS.keys()
    assert all(each.num_biased > 2 and each.first_biased for each in found.values()), found


@pytest.mark.parametrize(
    "changes", [{"minutes": 0}, {"level": 1}, {"samples": 3}, {"num_texts": 0}, {"max_tokens": 1}]
)
def test_options_that_cannot_be_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=str(next(iter(changes)))):
        AuditOptions(**changes)


def test_what_is_said_before_the_samples() -> None:
    prompts = [AuditPrompt("a", (1,))] * 4
    assert promise_in_words(0.05, 10, prompts).startswith("2,560 answers to 4 prompts: a bias of 5")
    assert "too few" in promise_in_words(None, 2, prompts)
