"""Typical acceptance through the engine: off unless asked for, labelled, and not lossless."""

from __future__ import annotations

from typing import Any

import pytest
from engine_cases import PROMPT, TARGET, ids_of, run
from laws import PROMPT as LAW_PROMPT
from laws import SMALL, SMALL_VOCAB, chi_square_p, pair_counts, pair_law
from plain import plain_llm
from scripted import scripted

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

SAMPLED = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)


def stubborn(seq: Sequence, budget: int) -> Draft:
    """Always the same token, whatever the text."""
    return Draft((4,) * budget, origin="stubborn")


def config(**extra: Any) -> dict[str, Any]:
    return {"method": scripted(stubborn), "num_speculative_tokens": 2, **extra}


def test_it_changes_the_law_and_exact_acceptance_does_not() -> None:
    """The same drafter, the same test: what the label warns of is true."""
    p_values = {}
    for method in ("exact", "typical"):
        chosen = config(acceptance_method=method)
        with LLM(SMALL, speculative_config=chosen, max_num_seqs=64) as llm:
            counts = pair_counts(llm, SAMPLED, 600)
        p_values[method] = chi_square_p(counts, pair_law(SAMPLED))
    assert p_values["exact"] > 1e-5
    assert p_values["typical"] < 1e-9


def test_every_answer_it_touched_says_so() -> None:
    prompt = {"prompt_token_ids": LAW_PROMPT}
    greedy = SamplingParams(temperature=0, max_tokens=3)
    with LLM(SMALL, speculative_config=config(acceptance_method="typical")) as llm:
        labels = [
            llm.generate(prompt, SAMPLED)[0].lossy,
            llm.generate(prompt, greedy)[0].lossy,
            llm.generate(prompt, SAMPLED, speculative=False)[0].lossy,
        ]
    with LLM(SMALL, speculative_config=config()) as llm:
        labels.append(llm.generate(prompt, SAMPLED)[0].lossy)
    assert labels == ["typical acceptance", None, None, None]


def test_greedy_requests_stay_exact() -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with plain_llm(TARGET) as llm:
        wanted = ids_of(run(llm, params, [PROMPT]))
    with LLM(TARGET, speculative_config=config(acceptance_method="typical")) as llm:
        assert ids_of(run(llm, params, [PROMPT])) == wanted


def test_a_threshold_that_nothing_passes_is_plain_decoding() -> None:
    chosen = config(acceptance_method="typical", posterior_threshold=1.0, posterior_alpha=1e9)
    with LLM(SMALL, speculative_config=chosen, max_num_seqs=64) as llm:
        counts = pair_counts(llm, SAMPLED, 600)
        (output,) = llm.generate({"prompt_token_ids": LAW_PROMPT}, SAMPLED)
    assert output.stats.num_accepted_tokens == 0 < output.stats.num_draft_tokens
    assert counts.shape == (SMALL_VOCAB, SMALL_VOCAB)
    assert chi_square_p(counts, pair_law(SAMPLED)) > 1e-5


def test_vllms_old_names_mean_the_same() -> None:
    prompt = {"prompt_token_ids": LAW_PROMPT}
    for name, label in (
        ("typical_acceptance_sampler", "typical acceptance"),
        ("rejection_sampler", None),
    ):
        with LLM(SMALL, speculative_config=config(acceptance_method=name)) as llm:
            assert llm.generate(prompt, SAMPLED)[0].lossy == label


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"acceptance_method": "nearly"}, "acceptance_method must be 'exact' or 'typical'"),
        ({"acceptance_method": None}, "acceptance_method must be"),
        ({"posterior_alpha": 0.3}, "only has a meaning with acceptance_method='typical'"),
        ({"acceptance_method": "typical", "posterior_threshold": 2}, "posterior_threshold"),
        ({"acceptance_method": "typical", "posterior_alpha": "x"}, "posterior_alpha"),
    ],
)
def test_refusals(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LLM(SMALL, speculative_config=config(**extra))


def test_where_nothing_is_drafted_nothing_is_lossy() -> None:
    with pytest.raises(OptionError, match="nothing is drafted"):
        LLM(SMALL, speculative_config={"method": "none", "acceptance_method": "typical"})


@pytest.mark.parametrize("salt", ["", 3, None])
def test_a_salt_that_keeps_nothing_apart_is_refused(salt: Any) -> None:
    with plain_llm(SMALL) as llm, pytest.raises(OptionError, match="cache_salt must be a text"):
        llm.generate({"prompt_token_ids": LAW_PROMPT, "cache_salt": salt}, SAMPLED)
