"""Sampled answers of the default model with the head that comes along have the model's own law.

Three tokens are looked at. The first comes before any draft, and K = 2 drafts both others, so that
the head's second position is judged wherever its first was accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from text_law import Misfit, misfit, p_value, text_law

from outpace import LLM, SamplingParams
from outpace.control import calibrate
from outpace.control.costs import CostTable
from outpace.control.stretches import Stretches
from outpace.drafters.auto import AutoDrafter
from outpace.drafters.suffix import SuffixDrafter
from outpace.heads.base import EagleRunner, HeadDraft
from outpace.heads.open import open_eagle
from outpace.models.load import LoadedModel
from outpace.outputs import SpeculationStats
from outpace.types import Draft, StepTimes
from outpace.verification.tree import _Remaining

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

Load = Callable[..., LoadedModel]
LENGTH = 3
PER_REQUEST = 250
"""Answers of one request: its prompt is fed once."""
# What a user asks, and how the answer begins: places where the model is undecided and the head is
# often right. Of bits every text of three tokens is frequent enough to be counted by itself.
BITS = ("Write a random sequence of bits.", "01101000101110010110100111010001")
DIGITS = ("Write a random sequence of digits.", "4819277305268114093357")
SUM = ("What is 12 + 7 * 3?", "To find the answer, we need to")
PENS = (
    "Sally has 3 boxes with 4 pens in each. How many pens?",
    "Sally has 3 boxes with 4 pens in each, so",
)
SHELL = ("Write a shell command that counts the lines of all text files in a folder.", "")


@pytest.fixture(scope="module")
def model(default_model: Load) -> LoadedModel:
    return default_model("bfloat16")


@pytest.fixture(scope="module")
def head(model: LoadedModel) -> EagleRunner:
    return open_eagle(None, model, "eagle3")


class Liar:
    """A head whose claims about its draws are false."""

    def __init__(self, head: EagleRunner) -> None:
        self._head: Any = head

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)


class OtherTemperature(Liar):
    """Draws at twice the temperature that it claims to have drawn at."""

    def draft(self, *args: Any, width: int) -> HeadDraft:
        *others, choosers = args
        warmer = [replace(chooser, temperature=2 * chooser.temperature) for chooser in choosers]
        made = self._head.draft(*others, warmer, width=width)
        squares = [law * law for law in made.q if law is not None]
        claims = [square / square.sum(axis=1, keepdims=True) for square in squares]
        return HeadDraft(made.token_ids, list(claims))


class SecondFromTail(Liar):
    """Draws the second token of a chain from the first twentieth of its distribution alone."""

    def draft(self, *args: Any, width: int) -> HeadDraft:
        *others, choosers = args
        narrowed = [
            replace(chooser, coins=[chooser.coins[0], *(coin / 20 for coin in chooser.coins[1:])])
            for chooser in choosers
        ]
        drafted: HeadDraft = self._head.draft(*others, narrowed, width=width)
        return drafted


@pytest.fixture
def _only_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `auto`: in every step trees of the head's tokens, of all of them, whatever the clock
    says."""
    silent = [Draft()]
    monkeypatch.setattr(
        SuffixDrafter, "propose_above", lambda self, floor, seqs, budgets: silent * len(seqs)
    )
    table = CostTable(((1, 10.0), (64, 10.1)), 0.0, 0.0, 0.0)
    monkeypatch.setattr(calibrate, "measure_costs", lambda *args, **named: table)
    monkeypatch.setattr(Stretches, "is_plain", False)
    real = AutoDrafter.timed

    def timed(self: AutoDrafter, times: StepTimes) -> None:
        real(self, StepTimes(0.0, 10.0, 10.0))

    monkeypatch.setattr(AutoDrafter, "timed", timed)


def misfit_of(
    model: LoadedModel,
    head: Any,
    prompt: tuple[str, str],
    temperature: float,
    count: int,
    method: str = "eagle3",
) -> Misfit:
    """How far `count` beginnings of answers are from their law."""
    question, beginning = prompt
    text = model.tokenizer.apply_chat_template([{"role": "user", "content": question}]) + beginning
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    params = SamplingParams(
        temperature=temperature, max_tokens=LENGTH + 1, ignore_eos=True, n=PER_REQUEST
    )
    most = {"max_trained_tokens": 2} if method == "auto" else {"num_speculative_tokens": 2}
    config = {"method": method, "model": head, **most}
    num_seqs = 16 if method == "auto" else 64  # a step has room for the trees of so many
    with LLM(model, speculative_config=config, max_num_seqs=num_seqs, max_model_len=128) as llm:
        results = llm.generate([{"prompt_token_ids": ids}] * (count // PER_REQUEST), params)
    stats = SpeculationStats()
    for result in results:
        stats.add(result.stats)
    assert stats.num_drafter_errors == 0
    # Without both positions drafted, judged and often right nothing would be shown of them.
    assert len(stats.accepted_per_position) == 2
    assert min(stats.accepted_per_position) > count / 20
    law = text_law(model, ids, temperature, length=LENGTH, least=5 / count)
    answers = [answer for result in results for answer in result.outputs]
    assert len(answers) == count
    return misfit(law, [tuple(answer.token_ids[:LENGTH]) for answer in answers])


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_sampled_answers_have_the_models_law(
    model: LoadedModel, head: EagleRunner, temperature: float
) -> None:
    found = [misfit_of(model, head, prompt, temperature, 500) for prompt in (BITS, SUM)]
    assert p_value(found) > 1e-6, found


@pytest.mark.usefixtures("_only_trees")
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_sampled_answers_by_the_trees_of_auto_have_the_models_law(
    model: LoadedModel, head: EagleRunner, temperature: float
) -> None:
    # Of bits the head's greedy chain, on which a tree is built, has the second one right too.
    found = [misfit_of(model, head, BITS, temperature, 750, "auto")]
    assert p_value(found) > 1e-6, found


@pytest.mark.usefixtures("_only_trees")
def test_refused_tokens_of_a_tree_that_stay_possible_are_noticed(
    model: LoadedModel, head: EagleRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Remaining, "reject", lambda self, weight, token, q_row: weight)
    found = misfit_of(model, head, BITS, 1.0, 500, "auto")
    assert p_value([found]) < 1e-9, found


@pytest.mark.parametrize("lie", [OtherTemperature, SecondFromTail])
def test_a_head_that_lies_is_caught(model: LoadedModel, head: EagleRunner, lie: type[Liar]) -> None:
    found = misfit_of(model, lie(head), BITS, 1.0, 250)
    assert p_value([found]) < 1e-9, found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "auto"])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_many_sampled_answers_have_the_models_law(
    default_model: Load, dtype: str, temperature: float
) -> None:
    model = default_model(dtype)
    head = open_eagle(None, model, "eagle3")
    prompts = (BITS, DIGITS, SUM, PENS, SHELL)
    found = [misfit_of(model, head, prompt, temperature, 2000) for prompt in prompts]
    assert p_value(found) > 1e-6, found
