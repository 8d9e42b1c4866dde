"""Differences on the default model: planted ones are violations, and another code's are ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from plain import plain_llm
from prompts import Prompt
from tiny import fresh_logits

from outpace import LLM, SamplingParams
from outpace.measure.ties import classify_difference, rounding_tolerance
from outpace.models.load import LoadedModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

Load = Callable[..., LoadedModel]
PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def prompt_ids(default_model: Load, prompts: list[Prompt]) -> list[int]:
    return default_model().tokenizer.encode(prompts[0].text)[:64]


def answer(llm: LLM, prompt_ids: list[int]) -> list[int]:
    return llm.generate([{"prompt_token_ids": prompt_ids}], PARAMS)[0].outputs[0].token_ids


@pytest.fixture(scope="module")
def plain(default_model: Load, prompt_ids: list[int]) -> list[int]:
    with plain_llm(default_model(), max_num_seqs=1, max_model_len=256) as llm:
        return answer(llm, prompt_ids)


def test_speculation_against_plain_decoding(
    default_model: Load, prompt_ids: list[int], plain: list[int]
) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4}
    with LLM(default_model(), speculative_config=config, max_num_seqs=1, max_model_len=256) as llm:
        got = answer(llm, prompt_ids)
    found = classify_difference(default_model(), prompt_ids, plain, got)
    assert found is None or found.kind == "tie", found


def test_planted_second_best_tokens_are_violations(
    default_model: Load, prompt_ids: list[int], plain: list[int]
) -> None:
    loaded = default_model()
    for index in (0, 11, 23):
        logits = fresh_logits(loaded, prompt_ids + plain[:index])
        best, second = logits.topk(2).indices.tolist()
        assert best == plain[index]
        found = classify_difference(
            loaded, prompt_ids, plain, [*plain[:index], second, *plain[index + 1 :]]
        )
        assert found is not None
        assert (found.index, found.kind) == (index, "violation")
        assert [top.token_id for top in found.top_tokens[:2]] == [best, second]
        # What plain decoding saw, to the last bit where the model promises that.
        if loaded.model_impl == "native":
            assert found.gap == float(logits[best]) - float(logits[second])


def test_other_code_moves_gaps_by_less_than_the_tolerance(
    default_model: Load, prompt_ids: list[int], plain: list[int]
) -> None:
    """The same weights in float32, computed by whatever runs them here and by torch."""
    ours, theirs = default_model("float32"), default_model("float32", "torch")
    for index in (0, 11, 23):
        tokens = prompt_ids + plain[:index]
        a, b = (fresh_logits(each, tokens).double().numpy() for each in (ours, theirs))
        best, second = np.argsort(-a)[:2]
        moved = abs((a[best] - a[second]) - (b[best] - b[second]))
        assert moved <= rounding_tolerance(ours, a, other_arithmetic=True) < 1e-3
