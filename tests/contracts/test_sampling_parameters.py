"""Every sampling parameter under speculation: what plain decoding gives, position by position.

Greedy and seeded requests must give the tokens of plain decoding under any combination of
parameters; unseeded ones must have the target's law, computed here from the definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from effort import examples
from engine_cases import PROMPTS, TARGET, VOCAB
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import SMALL, SMALL_DRAFT, chi_square_p, pair_counts, pair_law
from plain import plain_llm
from scripted import random_tokens, scripted
from tiny import END_ID, fresh_logits, tiny_model

from outpace import LLM, SamplingParams
from outpace.engine.parameters import bad_words_ids
from outpace.errors import OptionError
from outpace.outputs import RequestOutput
from outpace.sampling import History, probabilities
from outpace.types import Sequence


def no_repeats(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """A processor that looks at the history: no token twice in a row."""
    if output:
        logits[output[-1]] = -math.inf
    return logits


def even_after_odd(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """A processor that forbids half of all tokens, which half depends on the newest."""
    start = (output or prompt)[-1] % 2
    return torch.where(torch.arange(logits.numel()) % 2 == start, -math.inf, logits)


DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4},
    # The target itself: whole drafts are accepted, so that the history inside a draft matters.
    "itself": {"method": "draft_model", "model": TARGET, "num_speculative_tokens": 5},
    "other": {
        "method": "draft_model",
        "model": tiny_model(seed=2, num_layers=1),
        "num_speculative_tokens": 3,
    },
    "random": {"method": scripted(random_tokens(VOCAB + 8)), "num_speculative_tokens": 6},
}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, LLM]]:
    running = {name: LLM(TARGET, speculative_config=config) for name, config in DRAFTERS.items()}
    running["plain"] = plain_llm(TARGET)
    yield running
    for llm in running.values():
        llm.close()


token_ids = st.integers(0, VOCAB - 1)
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "repetition_penalty": st.sampled_from([0.8, 1.05, 1.3, 3.0]),
    "presence_penalty": st.sampled_from([-2.0, -0.3, 0.4, 2.0]),
    "frequency_penalty": st.sampled_from([-0.5, 0.2, 1.7]),
    "logit_bias": st.dictionaries(token_ids, st.sampled_from([-100, -1.0, 2.5, 100]), max_size=4),
    "allowed_token_ids": st.lists(token_ids, min_size=3, max_size=40),
    "bad_words": st.lists(st.sampled_from(["e", "th", "a e", "n\n", "zz"]), max_size=3),
    "min_tokens": st.integers(1, 12),
    "stop_token_ids": st.lists(token_ids, max_size=2),
    "logits_processors": st.sampled_from([[no_repeats], [even_after_odd, no_repeats]]),
    "stop": st.lists(st.sampled_from(["e", "th", " a"]), max_size=2),
    "logprobs": st.integers(0, 2),
    "top_k": st.sampled_from([2, 10]),
    "top_p": st.sampled_from([0.3, 0.9]),
    "min_p": st.sampled_from([0.05, 0.3]),
    "typical_p": st.sampled_from([0.2, 0.9]),
}
combinations = st.fixed_dictionaries(
    {"max_tokens": st.integers(12, 24), "ignore_eos": st.booleans()}, optional=PARAMETERS
)


def answer(llm: LLM, prompt: list[int], asked: dict[str, Any]) -> tuple[Any, ...]:
    """Everything a caller sees of one answer, or the error in its place."""
    try:
        (result,) = llm.generate([{"prompt_token_ids": prompt}], SamplingParams(**asked))
    except Exception as error:
        return type(error), str(error)
    output = result.outputs[0]
    logprobs = output.logprobs and [
        {token: (round(entry.logprob, 9), entry.rank) for token, entry in entries.items()}
        for entries in output.logprobs
    ]
    return output.token_ids, output.text, output.finish_reason, output.stop_reason, logprobs


@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    asked=combinations,
    prompt=st.sampled_from(PROMPTS),
    way=st.sampled_from([{"temperature": 0}, {"temperature": 0.9, "seed": 5}]),
)
def test_any_combination_equals_plain_decoding(
    engines: dict[str, LLM], asked: dict[str, Any], prompt: list[int], way: dict[str, Any]
) -> None:
    wanted = answer(engines["plain"], prompt, asked | way)
    for name in DRAFTERS:
        assert answer(engines[name], prompt, asked | way) == wanted, name


def processed_support(result: RequestOutput, asked: SamplingParams) -> Iterator[tuple[int, bool]]:
    """For each output token whether the processed p allowed it, from a fresh pass each time."""
    words = bad_words_ids(asked.bad_words, TARGET.tokenizer)
    prompt, output = result.prompt_token_ids, result.outputs[0].token_ids
    for position, token in enumerate(output):
        tokens = [*prompt, *output[:position]]
        seq = Sequence(0, tokens, len(prompt), asked, frozenset({END_ID}), bad_words_ids=words)
        p = probabilities(fresh_logits(TARGET, tokens).numpy(), History(seq))
        yield token, bool(p[token] > 0)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(asked=combinations, prompt=st.sampled_from(PROMPTS), name=st.sampled_from(list(DRAFTERS)))
def test_no_token_comes_that_the_parameters_forbid(
    engines: dict[str, LLM], asked: dict[str, Any], prompt: list[int], name: str
) -> None:
    params = SamplingParams(**asked | {"temperature": 1.3})
    try:
        (result,) = engines[name].generate([{"prompt_token_ids": prompt}], params)
    except ValueError:  # the combination leaves no token; the plain engine says so as well
        assert issubclass(
            answer(engines["plain"], prompt, asked | {"temperature": 1.3})[0], Exception
        )
        return
    assert all(allowed for _, allowed in processed_support(result, params))


# The law, by chi-square over pairs of tokens: the second is drawn with the first in its history,
# which under speculation was only drafted when its distribution was made.

COMBINATIONS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 2.0},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.2, "temperature": 0.8},
    "rewarded repetition": {"frequency_penalty": -1.0, "repetition_penalty": 0.7},
    "bias": {"logit_bias": {2: 1.5, 5: -1.0}, "top_k": 6},
    "allowed": {"allowed_token_ids": [2, 3, 5, 7], "presence_penalty": 0.8},
    "min_tokens": {"min_tokens": 2, "temperature": 1.4},
    "stop ids and min_tokens": {"min_tokens": 3, "stop_token_ids": [3], "min_p": 0.02},
    "bad words": {"bad_words": ["et", "t"], "temperature": 1.2},
    "typical": {"typical_p": 0.7, "repetition_penalty": 1.5},
    "top_p and penalties": {"top_p": 0.85, "presence_penalty": 1.0, "temperature": 1.3},
    "processor": {"logits_processors": [no_repeats]},
    "everything": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "logit_bias": {4: 0.7},
        "min_tokens": 1,
        "bad_words": ["t"],
        "logits_processors": [no_repeats],
        "temperature": 1.2,
        "top_k": 6,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.98,
    },
}
# Those whose parameters other combinations have as well, or that act on single rows of logits.
OFTEN_COVERED = ("presence", "frequency", "bias", "allowed", "min_tokens", "top_p and penalties")
NUM_REQUESTS = 1200
K = {"num_speculative_tokens": 2}


def p_value(asked: dict[str, Any], config: dict[str, Any]) -> float:
    """How well 1,200 answers with a drafter fit the law computed from the definition."""
    params = SamplingParams(**{"max_tokens": 3, "ignore_eos": True, **asked})
    words = bad_words_ids(params.bad_words, SMALL.tokenizer)
    law = pair_law(params, frozenset({END_ID}), words)
    with LLM(SMALL, speculative_config=config, max_num_seqs=64) as llm:
        return chi_square_p(pair_counts(llm, params, NUM_REQUESTS), law)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in OFTEN_COVERED else name
        for name in COMBINATIONS
    ],
)
def test_the_law_holds_under_sampled_drafts(name: str) -> None:
    config = {"method": "draft_model", "model": SMALL_DRAFT, **K}
    assert p_value(COMBINATIONS[name], config) > 1e-5


@pytest.mark.parametrize("name", ["frequency", "bad words", "typical", "everything"])
def test_the_law_holds_under_deterministic_drafts(name: str) -> None:
    config = {"method": scripted(random_tokens(SMALL.config.vocab_size)), **K}
    assert p_value(COMBINATIONS[name], config) > 1e-5


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 100.0},
        {"presence_penalty": 2.0},
        {"frequency_penalty": -2.0},
        {"logits_processors": [no_repeats]},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_history_without_the_draft_fails_the_law(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: what several engines do."""
    original = History.processed
    params = SamplingParams(max_tokens=3, ignore_eos=True, **asked)
    law = pair_law(params)

    def forgetful(self: History, logits: np.ndarray, drafted: Any = ()) -> np.ndarray:
        return original(self, logits, ())

    monkeypatch.setattr(History, "processed", forgetful)
    config = {"method": "draft_model", "model": SMALL, **K}
    with LLM(SMALL, speculative_config=config, max_num_seqs=64) as llm:
        counts = pair_counts(llm, params, NUM_REQUESTS)
    forbidden = counts[law == 0].any()
    assert forbidden or chi_square_p(counts, law) < 1e-9


# Where no token is left.


def run_into_a_wall(llm: LLM, **asked: Any) -> list[str]:
    """Messages of requests beside one that must go on."""
    messages = []
    with llm.stream({"prompt_token_ids": PROMPTS[0]}, SamplingParams(max_tokens=30, seed=1)) as ok:
        for _ in range(3):
            try:
                llm.generate([{"prompt_token_ids": PROMPTS[1]}], SamplingParams(**asked))
            except ValueError as error:
                messages.append(str(error))
        assert len(ok.drain().outputs[0].token_ids) > 0
    return messages


@pytest.mark.parametrize("way", [{"temperature": 0}, {"seed": 1}, {}], ids=str)
@pytest.mark.parametrize("name", ["plain", *DRAFTERS])
def test_a_dead_end_ends_its_request_alone(
    engines: dict[str, LLM], name: str, way: dict[str, Any]
) -> None:
    def wall(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        return logits if len(output) < 3 else torch.full_like(logits, -math.inf)

    messages = run_into_a_wall(
        engines[name], logits_processors=[wall], max_tokens=9, ignore_eos=True, **way
    )
    assert len(messages) == 3
    assert all("no token is left to generate" in message for message in messages)


@pytest.mark.parametrize("name", ["itself", "random"])
def test_a_dead_end_behind_a_rejected_draft_is_never_reached(
    engines: dict[str, LLM], name: str
) -> None:
    """A processor that fails after a token that plain decoding never takes."""
    asked = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    (plain,) = engines["plain"].generate(
        [{"prompt_token_ids": PROMPTS[0]}], SamplingParams(**asked)
    )
    safe = plain.outputs[0].token_ids

    def picky(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        if output != safe[: len(output)]:
            raise RuntimeError("off the path")
        return logits

    asked["logits_processors"] = [picky]
    (result,) = engines[name].generate([{"prompt_token_ids": PROMPTS[0]}], SamplingParams(**asked))
    assert result.outputs[0].token_ids == safe


class UnspeakableError(RuntimeError):
    def __repr__(self) -> str:
        raise ValueError("no words")


def raises_unspeakably(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    raise UnspeakableError


@pytest.mark.parametrize(
    "processor",
    [
        raises_unspeakably,
        lambda prompt, output, logits: logits.to_sparse(),
        lambda prompt, output, logits: logits * math.nan,
        lambda prompt, output, logits: None,
    ],
    ids=["raises", "sparse", "NaN", "nothing"],
)
@pytest.mark.parametrize("name", ["plain", "itself"])
def test_a_broken_processor_ends_its_request_alone(
    engines: dict[str, LLM], name: str, processor: Any
) -> None:
    messages = run_into_a_wall(engines[name], logits_processors=[processor])
    assert len(messages) == 3
    assert all("the logits processor " in message for message in messages)


def test_an_engine_cannot_wait_for_itself(engines: dict[str, LLM]) -> None:
    llm = engines["plain"]

    def nested(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        llm.generate([{"prompt_token_ids": [3]}], SamplingParams(max_tokens=1))
        return logits

    with pytest.raises(OptionError, match="cannot be used from inside one of its own requests"):
        llm.generate([{"prompt_token_ids": [3]}], SamplingParams(logits_processors=[nested]))
    assert answer(llm, [3], {"max_tokens": 2})[0]
