"""Any combination of sampling parameters: drafts change no field of the output."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from effort import examples
from engine_cases import TARGET, VOCAB, speculating
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import plain_llm
from scripted import random_tokens
from tiny import END_ID, tiny_model

from outpace import LLM, SamplingParams
from outpace.outputs import CompletionOutput, Logprob, RequestOutput

MANY_WORDS = [["e"], ["he", "s"], ["t a", "e"]]
# In float64 the greatest difference between two ways of feeding the same tokens is below this.
CLOSE = 1e-9
# The end token, "o", "h", "l" and "u": with so few tokens everything repeats at once, so that what
# one draft token changes for the next is seen.
FEW = [END_ID, 5, 9, 12, 13]
token_ids = st.integers(0, VOCAB - 1).filter(lambda token: token not in FEW[:-1])


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, LLM]]:
    """Plain decoding one by one, and every drafter with rows for some answers only."""
    draft = tiny_model(seed=2, num_layers=1)
    guess = {"method": "draft_model", "num_speculative_tokens": 3}
    made = {
        "plain": plain_llm(TARGET, max_num_seqs=1),
        "batched": plain_llm(TARGET, max_num_seqs=4),
        "random": speculating(random_tokens(VOCAB + 5), 4, max_num_seqs=3),
        "ngram": LLM(
            TARGET,
            speculative_config={"method": "ngram", "num_speculative_tokens": 3},
            max_num_seqs=2,
        ),
        "draft_model": LLM(TARGET, speculative_config=guess | {"model": draft}, max_num_seqs=3),
        "itself": LLM(TARGET, speculative_config=guess | {"model": TARGET}, max_num_seqs=1),
    }
    yield made
    for llm in made.values():
        llm.close()


def dislike_repeats(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    if output:
        logits[output[-1]] = -math.inf
    return logits


@st.composite
def sampling_params(draw: Any, few: bool = False) -> SamplingParams:
    """Any of the parameters, most of them at rest; nothing is left to chance."""
    every_third = list(range(0, VOCAB, 3))

    def maybe(strategy: Any, default: Any) -> Any:
        return draw(strategy) if draw(st.integers(0, 2)) == 0 else default

    max_tokens = draw(st.sampled_from([0, 1, 2, 5, 9, 14, 14]))
    values: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 0.7, 1.5])),
        "seed": draw(st.integers(0, 3)),
        "max_tokens": max_tokens,
        "n": maybe(st.integers(1, 4), 1),
        "min_tokens": draw(st.integers(0, max_tokens))
        if few
        else maybe(st.just(min(1, max_tokens)), 0),
        "stop": maybe(st.lists(st.sampled_from(["e", "t", " ", "at", "an", "s"]), max_size=2), ()),
        "stop_token_ids": maybe(st.lists(token_ids | st.just(FEW[-1]), max_size=4), ()),
        "ignore_eos": draw(st.booleans()),
        # End tokens are rare enough to be hardly ever drawn otherwise.
        "logit_bias": maybe(st.just({END_ID: 4.0, 5: -3.0}), None),
        "logprobs": maybe(st.integers(0, 3), None),
        "prompt_logprobs": maybe(st.integers(0, 2), None),
        "include_stop_str_in_output": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
        "top_k": maybe(st.integers(1, 20), 0),
        "top_p": maybe(st.sampled_from([0.5, 0.9]), 1.0),
        "min_p": maybe(st.just(0.05), 0.0),
        "typical_p": maybe(st.just(0.6), 1.0),
        "repetition_penalty": maybe(st.sampled_from([0.8, 1.4]), 1.0),
        "presence_penalty": maybe(st.sampled_from([-1.0, 1.0]), 0.0),
        "frequency_penalty": maybe(st.sampled_from([-1.0, 0.5]), 0.0),
        "bad_words": maybe(st.sampled_from([["oh"], ["ll"], ["hol"]] if few else MANY_WORDS), ()),
        "allowed_token_ids": FEW if few else maybe(st.just(every_third), None),
        "logits_processors": maybe(st.just([dislike_repeats]), ()),
    }
    return SamplingParams(**values)


prompts = st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=12)
any_params = st.one_of(sampling_params(), sampling_params(few=True))
cases = st.lists(st.tuples(prompts, any_params), min_size=1, max_size=4)


@given(cases)
@settings(max_examples=examples(15))
def test_no_drafter_changes_any_field(engines: dict[str, LLM], batch: Any) -> None:
    given_prompts = [{"prompt_token_ids": prompt} for prompt, _ in batch]
    params = [one for _, one in batch]
    wanted = engines["plain"].generate(given_prompts, params)
    for name, llm in engines.items():
        for one, output in zip(wanted, llm.generate(given_prompts, params), strict=True):
            assert_same(one, output, name)
    for output, asked in zip(wanted, params, strict=True):
        assert_asked_for(output, asked)


def assert_same(wanted: RequestOutput, output: RequestOutput, name: str) -> None:
    assert len(wanted.outputs) == len(output.outputs), name
    for one, other in zip(wanted.outputs, output.outputs, strict=True):
        assert fields_of(one) == fields_of(other), name
        assert_close(one.logprobs, other.logprobs)
    assert_close(wanted.prompt_logprobs, output.prompt_logprobs)


def fields_of(answer: CompletionOutput) -> tuple[Any, ...]:
    told = (answer.index, answer.text, answer.token_ids)
    return (*told, answer.finish_reason, answer.stop_reason)


def assert_close(
    wanted: list[dict[int, Logprob]] | list[dict[int, Logprob] | None] | None,
    got: list[dict[int, Logprob]] | list[dict[int, Logprob] | None] | None,
) -> None:
    assert (wanted is None) == (got is None)
    for one, other in zip(wanted or [], got or [], strict=True):
        assert (one is None) == (other is None)
        assert list(one or {}) == list(other or {})
        for token in one or {}:
            assert one is not None
            assert other is not None
            assert abs(one[token].logprob - other[token].logprob) < CLOSE
            assert one[token].rank == other[token].rank


def assert_asked_for(output: RequestOutput, params: SamplingParams) -> None:
    """What can be said of an output without computing it again."""
    assert output.finished
    assert len(output.outputs) == params.n
    if params.is_greedy:
        assert len({tuple(answer.token_ids) for answer in output.outputs}) == 1
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {END_ID})
    for answer in output.outputs:
        assert params.max_tokens is not None
        assert len(answer.token_ids) <= params.max_tokens
        if answer.finish_reason == "stop":
            assert len(answer.token_ids) > params.min_tokens
        else:
            assert (answer.finish_reason, len(answer.token_ids)) == ("length", params.max_tokens)
        assert not ends & set(answer.token_ids[:-1])
        if params.allowed_token_ids is not None:
            assert set(answer.token_ids) <= set(params.allowed_token_ids)
        if params.logprobs is not None:
            assert len(answer.logprobs or []) == len(answer.token_ids)
        for earlier in range(params.min_tokens):
            assert answer.token_ids[earlier] not in {END_ID, *params.stop_token_ids}


@given(prompts, sampling_params(), st.integers(1, 3))
@settings(max_examples=examples(15))
def test_streams_and_fewer_answers_tell_the_same(
    engines: dict[str, LLM], prompt: list[int], params: SamplingParams, n: int
) -> None:
    given_prompt = {"prompt_token_ids": prompt}
    with engines["random"].stream(given_prompt, params) as stream:
        events = list(stream)
    output = stream.output
    for answer in output.outputs:
        mine = [event for event in events if event.index == answer.index]
        assert "".join(event.text for event in mine) == answer.text
        assert [token for event in mine for token in event.token_ids] == answer.token_ids
        assert mine[-1].finish_reason == answer.finish_reason
    values = {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}
    (other,) = engines["batched"].generate([given_prompt], SamplingParams(**values | {"n": n}))
    shared = min(n, params.n)
    for one, two in zip(output.outputs[:shared], other.outputs[:shared], strict=True):
        assert fields_of(one) == fields_of(two)


def test_the_comparison_can_fail(engines: dict[str, LLM]) -> None:
    """Negative control: one parameter that drafts would change unseen makes it fail."""
    params = [
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, repetition_penalty=penalty)
        for penalty in (1.0, 1.4)
    ]
    one, other = (engines["random"].generate("the the the", each)[0] for each in params)
    with pytest.raises(AssertionError):
        assert_same(one, other, "random")
