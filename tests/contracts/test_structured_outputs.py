"""Grammars under speculation: answers are words of the language and have the masked target's law.

The language and the law are computed here by a definition of their own (toy_grammar.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from laws import PROMPT, SMALL, SMALL_DRAFT, SMALL_VOCAB, chi_square_p
from plain import plain_llm
from scripted import in_a_tree, random_tokens, sampled, scripted, siblings
from tiny import BEGIN_ID, END_ID
from toy_grammar import (
    STRUCTURE,
    C,
    counted,
    greedy_output,
    is_beginning,
    is_word,
    output_law,
)

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.grammar import GrammarState
from outpace.outputs import CompletionOutput
from outpace.types import Draft, Sequence

K = 4
LENGTH = 4
TEMPERATURE = 1.5
NUM_ANSWERS, TOGETHER = 1200, 100
"""How many answers are counted, and how many of them one request asks for."""
ANY = SMALL_VOCAB + 3  # some ids lie outside the vocabulary
PROMPTS = [[n % 6 + 2 for n in range(start, start + 4)] for start in range(12)]
# What the drafter draws from: every token, allowed or not, has its share.
SOFT = np.linspace(1, 2, SMALL_VOCAB) / np.linspace(1, 2, SMALL_VOCAB).sum()


def configured(method: Any, **options: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": K, **options}


DRAFTERS: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: configured(scripted(random_tokens(ANY))),
    "random tree": lambda: configured(scripted(in_a_tree(random_tokens(ANY), SMALL_VOCAB))),
    "drawn": lambda: configured(scripted(sampled(SOFT))),
    "drawn tree": lambda: configured(scripted(siblings(SOFT))),
    "draft_model": lambda: configured("draft_model", model=SMALL_DRAFT),
    "draft_model tree": lambda: configured("draft_model", model=SMALL_DRAFT, num_branches=2),
    "early_exit": lambda: configured("early_exit", exit_layer=1),
    "itself": lambda: configured("draft_model", model=SMALL),
    "ngram": lambda: configured("ngram"),
}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, LLM]]:
    made = {"plain": plain_llm(SMALL, max_num_seqs=64)}
    for name, config in DRAFTERS.items():
        made[name] = LLM(SMALL, speculative_config=config(), max_num_seqs=64)
    yield made
    for llm in made.values():
        llm.close()


def answers(
    llm: LLM, count: int, seeds: bool = False, prompts: Any = None, **asked: Any
) -> list[CompletionOutput]:
    """Answers under the toy grammar, to one prompt or each to its own."""
    values = {"structured_outputs": STRUCTURE, "temperature": TEMPERATURE} | asked
    params = [SamplingParams(**values, seed=i if seeds else None) for i in range(count)]
    given = [{"prompt_token_ids": ids} for ids in prompts or [PROMPT] * count]
    results = llm.generate(given, params)
    assert sum(result.stats.num_drafter_errors for result in results) == 0
    return [answer for result in results for answer in result.outputs]


@pytest.fixture(scope="module")
def seeded(engines: dict[str, LLM]) -> list[list[int]]:
    made = answers(engines["plain"], 1000, seeds=True, max_tokens=12)
    return [answer.token_ids for answer in made]


def test_the_plain_run_keeps_to_the_language(
    seeded: list[list[int]], engines: dict[str, LLM]
) -> None:
    assert all(is_word(ids) or (len(ids) == 12 and is_beginning(ids)) for ids in seeded)
    assert sum(is_word(ids) for ids in seeded) > 500
    greedy = answers(engines["plain"], 12, prompts=PROMPTS, temperature=0, max_tokens=12)
    expected = [greedy_output(prompt, 12) for prompt in PROMPTS]
    assert [answer.token_ids for answer in greedy] == expected


@pytest.mark.parametrize("name", ["random", pytest.param("drawn", marks=pytest.mark.slow)])
def test_a_thousand_seeds(name: str, seeded: list[list[int]], engines: dict[str, LLM]) -> None:
    made = answers(engines[name], 1000, seeds=True, max_tokens=12)
    assert [answer.token_ids for answer in made] == seeded
    for answer in made:
        assert answer.finish_reason == ("stop" if is_word(answer.token_ids) else "length")


@pytest.mark.parametrize("name", DRAFTERS)
def test_no_drafter_changes_greedy_or_seeded_answers(
    name: str, seeded: list[list[int]], engines: dict[str, LLM]
) -> None:
    greedy = answers(engines[name], 12, prompts=PROMPTS, temperature=0, max_tokens=12)
    assert [a.token_ids for a in greedy] == [greedy_output(prompt, 12) for prompt in PROMPTS]
    made = answers(engines[name], 100, seeds=True, max_tokens=12)
    assert [answer.token_ids for answer in made] == seeded[:100]


def law_p_value(llm: LLM) -> float:
    """How well unseeded answers fit the masked target's law."""
    law = output_law(LENGTH, TEMPERATURE)
    made = answers(llm, NUM_ANSWERS // TOGETHER, n=TOGETHER, max_tokens=LENGTH)
    counts = counted([tuple(answer.token_ids) for answer in made], law)
    return chi_square_p(counts, np.array(list(law.values())))


@pytest.mark.parametrize(
    "name",
    [
        "random",
        "random tree",
        "drawn",
        "draft_model",
        "draft_model tree",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("plain", "drawn tree", "early_exit", "itself")
        ),
    ],
)
def test_unseeded_answers_have_the_law(name: str, engines: dict[str, LLM]) -> None:
    assert law_p_value(engines[name]) > 1e-5


def dropping() -> Any:
    """Draws a chain and drops it from the first token on that the grammar forbids."""
    q = np.zeros(SMALL_VOCAB)
    q[[C, BEGIN_ID]] = 0.5
    draw = sampled(q)

    def propose(seq: Sequence, budget: int) -> Draft:
        output, drawn = seq.tokens[seq.num_prompt :], draw(seq, budget).token_ids
        kept = 0
        while kept < budget and is_beginning([*output, *drawn[: kept + 1]]):
            kept += 1
        return Draft(drawn[:kept], (q,) * kept, "dropping")

    return propose


def test_dropping_drawn_tokens_fails_the_law() -> None:
    """What several engines do with a draft that the grammar forbids. A token that is missing was
    drawn and looked at: the step goes on as if nothing had been drawn, which is biased."""
    with LLM(SMALL, speculative_config=configured(scripted(dropping())), max_num_seqs=64) as llm:
        assert law_p_value(llm) < 1e-9


def test_a_mask_that_forgets_the_draft_leaves_the_language(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another control: the mask of the committed text alone, at every position of a draft."""
    forbid = GrammarState.forbid

    def forgetful(self: GrammarState, logits: Any, tokens: Any, start: int, drafted: Any) -> None:
        forbid(self, logits, tokens, start, ())

    monkeypatch.setattr(GrammarState, "forbid", forgetful)
    config = configured("draft_model", model=SMALL)
    with (
        LLM(SMALL, speculative_config=config, max_num_seqs=64) as llm,
        pytest.raises(OptionError, match="no token is left"),
    ):
        answers(llm, 60, max_tokens=LENGTH)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_the_end_of_an_answer_inside_a_draft(shape: str) -> None:
    """A perfect drafter that writes on behind the end: nothing after it is output."""

    def propose(seq: Sequence, budget: int) -> Draft:
        word = greedy_output(seq.tokens[: seq.num_prompt], 12)
        beyond = [*word[seq.num_output :], 3, END_ID, 4, 5]
        parents = None if shape == "chain" else tuple(range(-1, budget - 1))
        return Draft(tuple(beyond[:budget]), None, "beyond", parents)

    words = [greedy_output(prompt, 12) for prompt in PROMPTS]
    assert sum(map(is_word, words)) > 3
    with LLM(SMALL, speculative_config=configured(scripted(propose)), max_num_seqs=4) as llm:
        made = answers(llm, 12, prompts=PROMPTS, temperature=0, max_tokens=12)
    assert [answer.token_ids for answer in made] == words
    assert [answer.finish_reason == "stop" for answer in made] == [*map(is_word, words)]
