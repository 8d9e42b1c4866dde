"""A draft model beside its target: same tokens, other padding; other tokens, refused."""

from __future__ import annotations

import pytest
from plain import plain_llm
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.errors import OptionError

# The tokenizer has 258 tokens; the models have more rows, as published ones do.
NUM_TOKENS = 258
TARGET = tiny_model(vocab_size=300, seed=1)
PROMPTS = [{"prompt_token_ids": ids} for ids in ([5, 6, 7, 8, 5, 6], [200, 257], [9] * 20)]


def drafting(vocab_size: int, seed: int = 2, num_layers: int = 1) -> dict[str, object]:
    model = tiny_model(vocab_size=vocab_size, seed=seed, num_layers=num_layers)
    return {"method": "draft_model", "model": model, "num_speculative_tokens": 4}


@pytest.mark.parametrize("rows", [258, 264, 320])
def test_padding_rows_differ_and_nothing_else_does(rows: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with plain_llm(TARGET) as plain, LLM(TARGET, speculative_config=drafting(rows)) as llm:
        wanted = [result.outputs[0].token_ids for result in plain.generate(PROMPTS, params)]
        results = llm.generate(PROMPTS, params)
    assert [result.outputs[0].token_ids for result in results] == wanted
    assert all(result.stats.num_drafter_errors == 0 for result in results)
    assert all(result.stats.num_draft_tokens > 0 for result in results)


@pytest.mark.parametrize("rows", [258, 320])
def test_padding_has_no_probability_on_either_side(rows: int) -> None:
    """At this temperature every row would be drawn soon, were it a token."""
    params = SamplingParams(temperature=50.0, max_tokens=60, ignore_eos=True)
    with LLM(TARGET, speculative_config=drafting(rows)) as llm:
        results = llm.generate(PROMPTS * 8, params)
    tokens = {token for result in results for token in result.outputs[0].token_ids}
    assert max(tokens) < NUM_TOKENS
    assert len(tokens) > NUM_TOKENS // 2
    assert sum(result.stats.num_accepted_tokens for result in results) > 0


def test_other_tokens_are_refused_by_the_first_that_differs() -> None:
    with pytest.raises(OptionError, match=r"id 90 is '.+' in tiny and no token in tiny"):
        LLM(TARGET, speculative_config=drafting(90))
