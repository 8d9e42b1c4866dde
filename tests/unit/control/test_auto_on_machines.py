"""Deciding in whole, on made-up machines and texts: what it loses to plain decoding, and wins."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate, product
from typing import NamedTuple

import pytest

from outpace.control import stretches as rules
from outpace.control.acceptance import Acceptance
from outpace.control.costs import CostTable, DraftCosts, PassShape, StepCosts
from outpace.control.goodput import Ways, plan
from outpace.control.stretches import Stretches

SETTLING, MOST_DRAFTED = 2, 4


class Machine(NamedTuple):
    """Seconds of a plain pass after `SETTLING` others, of one among drafting ones, of a row more
    and of a draft token."""

    plain_s: float
    among_s: float
    row_s: float
    draft_s: float


MACHINES = {
    "cheap when undisturbed": Machine(3.0, 5.0, 0.5, 0.7),
    "flat": Machine(12.0, 12.0, 0.3, 1.2),
    "steep": Machine(4.0, 4.2, 2.5, 0.7),
}
Text = Callable[[int], float]
"""How probable it is that a draft token is accepted, by where in the text it stands."""
TEXTS: dict[str, Text] = {
    "never": lambda i: 0.0,
    "always": lambda i: 0.9,
    "switching": lambda i: 0.9 if i // 200 % 2 else 0.1,
    "bursts": lambda i: 0.9 if i % 150 >= 120 else 0.1,
}


class Run(NamedTuple):
    speedup: float
    num_plain: int
    num_steps: int
    predicted: float


def decide(machine: Machine, text: Text, num_tokens: int, hiccup: int | None = None) -> Run:
    """Decodes that many tokens; `hiccup`: the step in which the machine is away for 20 passes.
    Predictions are relative to what steps took."""
    rng = random.Random(0)
    table = CostTable(((1, machine.among_s), (32, machine.among_s + 31 * machine.row_s)))
    stretches, costs, drafting = Stretches(table), StepCosts(table), DraftCosts(machine.among_s)
    acceptance = Acceptance()
    acceptance.open(0, "greedy")
    spent = predicted_s = 0.0
    at = undisturbed = num_plain = step = 0
    while at < num_tokens:
        if stretches.is_plain:
            decided, undisturbed = stretches.plan(1, 0), undisturbed + 1
        else:
            ladder, undisturbed = acceptance.ladder(0, MOST_DRAFTED), 0
            levels = range(MOST_DRAFTED + 1)
            drafted_s = list(accumulate((drafting.predict(1, n) for n in levels), max))
            curve = costs.curve(1, 0, 1 + MOST_DRAFTED, "greedy")
            decided = plan([Ways([], ladder)], curve, drafted_s, stretches.per_second(1, 0))
        drafted, accepted = decided.choices[0][1], 0
        while accepted < drafted and rng.random() < text(at):
            accepted += 1
        settled = undisturbed > SETTLING
        pass_s = machine.plain_s if settled else machine.among_s + machine.row_s * drafted
        pass_s *= rng.lognormvariate(0.0, 0.03)
        if step == hiccup:
            pass_s += 20 * machine.among_s
        draft_s, shape = machine.draft_s * drafted, PassShape(1, 1 + drafted, 0)
        num_plain += stretches.is_plain
        if not stretches.is_plain:
            costs.observe(shape, "greedy", pass_s, 0.0)
        if drafted:
            drafting.observe(1, drafted, [], draft_s)
            acceptance.observe(0, drafted, accepted, False)
        stretches.observe(shape, 1 + accepted, pass_s + draft_s, decided.seconds)
        spent, predicted_s = spent + pass_s + draft_s, predicted_s + decided.seconds
        at, step = at + 1 + accepted, step + 1
    return Run(at * machine.plain_s / spent, num_plain, step, predicted_s / spent)


def fixed(machine: Machine, text: Text, num_tokens: int, length: int) -> float:
    """The speed-up of always drafting that many tokens."""
    rng, spent, at = random.Random(0), 0.0, 0
    while at < num_tokens:
        accepted = 0
        while accepted < length and rng.random() < text(at):
            accepted += 1
        spent += machine.among_s + (machine.row_s + machine.draft_s) * length
        at += 1 + accepted
    return at * machine.plain_s / spent


CASES = list(product(MACHINES, TEXTS))


@pytest.mark.parametrize(("machine", "text"), CASES)
def test_it_does_not_lose_to_plain_decoding(machine: str, text: str) -> None:
    assert decide(MACHINES[machine], TEXTS[text], 1500).speedup > 0.97
    assert decide(MACHINES[machine], TEXTS[text], 6000).speedup > 0.985


def test_trials_without_a_bound_would_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same, but that a trial may lose the time of 30 plain steps."""
    for limit, value in (("CREDIT", 30.0), ("MOST_CREDIT", 30.0), ("IDLE_CHARGE", 1.0)):
        monkeypatch.setattr(rules, limit, value)
    assert decide(MACHINES["cheap when undisturbed"], TEXTS["never"], 1500).speedup < 0.95


@pytest.mark.parametrize(
    ("machine", "text", "share"),
    [
        ("flat", "always", 0.97),
        ("flat", "switching", 0.8),
        ("cheap when undisturbed", "always", 0.95),
    ],
)
def test_where_drafting_pays_it_drafts(machine: str, text: str, share: float) -> None:
    """Of what the best of all lengths brings, chosen in hindsight."""
    best = max(fixed(MACHINES[machine], TEXTS[text], 6000, length) for length in range(1, 5))
    assert best > 1.1
    assert decide(MACHINES[machine], TEXTS[text], 6000).speedup > share * best


@pytest.mark.parametrize(("machine", "text"), CASES)
def test_predictions_are_honest(machine: str, text: str) -> None:
    assert decide(MACHINES[machine], TEXTS[text], 3000).predicted == pytest.approx(1.0, abs=0.05)


def test_a_hiccup_of_the_machine_does_not_end_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, text, early = MACHINES["flat"], TEXTS["always"], rules.FIRST_STRETCH + 2
    undisturbed = decide(machine, text, 400)
    assert decide(machine, text, 400, hiccup=early).num_plain == undisturbed.num_plain
    monkeypatch.setattr(rules, "MOST_LATE", 1e9)
    assert decide(machine, text, 400, hiccup=early).num_plain > undisturbed.num_plain
