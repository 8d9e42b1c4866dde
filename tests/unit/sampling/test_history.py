"""Parameters that look at the history: against a slow reference, transformers, and themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import OptionError
from outpace.params import SamplingParams
from outpace.sampling import History, probabilities
from outpace.types import Sequence

V = 12
PROMPT = [1, 5, 5, 9]
ENDS = frozenset({0, 11})


def sequence(output: list[int], **asked: Any) -> Sequence:
    words = asked.pop("bad_words_ids", ())
    tokens = [*PROMPT, *output]
    return Sequence(0, tokens, len(PROMPT), SamplingParams(**asked), ENDS, bad_words_ids=words)


def processed(
    logits: list[float], output: list[int], drafted: list[int] = (), **asked: Any
) -> list[float]:
    history = History(sequence(output, **asked))
    return list(history.processed(np.array(logits), drafted).tolist())


def reference(logits: list[float], seq: Sequence) -> list[float]:
    """What the documentation says, one token at a time."""
    asked, output = seq.params, seq.tokens[seq.num_prompt :]
    result = []
    for token, value in enumerate(logits):
        allowed = asked.allowed_token_ids is None or token in asked.allowed_token_ids
        for *beginning, last in seq.bad_words_ids:
            tail = output[len(output) - len(beginning) :]
            if last == token and len(output) >= len(beginning) and tail == beginning:
                allowed = False
        if len(output) < asked.min_tokens and token in ENDS | set(asked.stop_token_ids):
            allowed = False
        value = value + (asked.logit_bias or {}).get(token, 0.0)
        if token in seq.tokens:
            penalty = asked.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        value -= asked.frequency_penalty * output.count(token)
        value -= asked.presence_penalty * (token in output)
        result.append(value if allowed else -math.inf)
    return result


tokens = st.lists(st.integers(0, V - 1), max_size=6)
words = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=3).map(tuple), max_size=3)
asked_for = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-0.5, 0.0, 1.5]),
        "frequency_penalty": st.sampled_from([-1.0, 0.0, 0.7]),
        "logit_bias": st.dictionaries(st.integers(0, V - 1), st.floats(-5, 5), max_size=3),
        "allowed_token_ids": st.lists(st.integers(0, V - 1), min_size=1, max_size=8),
        "bad_words_ids": words.map(tuple),
        "min_tokens": st.integers(0, 8),
        "stop_token_ids": st.lists(st.integers(0, V - 1), max_size=2),
    },
)
logit_rows = st.lists(st.floats(-5, 5), min_size=V, max_size=V)


@given(logit_rows, tokens, asked_for)
def test_every_combination_follows_its_definition(
    logits: list[float], output: list[int], asked: dict[str, Any]
) -> None:
    asked = {"max_tokens": None, **asked}
    expected = reference(logits, sequence(output, **asked))
    assert processed(logits, output, **asked) == pytest.approx(expected, abs=1e-12)


@given(logit_rows, tokens, tokens, asked_for)
def test_a_drafted_token_counts_as_a_committed_one(
    logits: list[float], output: list[int], drafted: list[int], asked: dict[str, Any]
) -> None:
    asked = {"max_tokens": None, **asked}
    ahead = processed(logits, output, drafted, **asked)
    assert ahead == processed(logits, [*output, *drafted], **asked)


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_forgetting_the_draft_would_show(name: str) -> None:
    logits = [1.0] * V
    assert processed(logits, [2], [3], **{name: 1.5}) != processed(logits, [2], **{name: 1.5})


def test_out_of_range_ids_are_harmless() -> None:
    """Drafts may hold any id, and a draft model may have fewer rows than the target."""
    asked: dict[str, Any] = {
        "repetition_penalty": 2.0,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "logit_bias": {V: 3.0},
        "allowed_token_ids": [2, V, V + 1],
        "stop_token_ids": [V + 5],
        "min_tokens": 9,
        "bad_words_ids": ((V + 2,), (-1, 4)),
        "max_tokens": None,
    }
    row = processed([1.0] * V, [], [-1, V, 10**12], **asked)
    assert [token for token, value in enumerate(row) if value > -math.inf] == [2]


def test_nothing_asked_for_means_nothing_copied() -> None:
    logits = np.zeros(V)
    neutral = History(sequence([3], temperature=0.7, top_p=0.9))
    assert neutral.is_neutral
    assert neutral.processed(logits) is logits
    penalised = History(sequence([3], presence_penalty=0.5))
    assert penalised.processed(logits) is not logits
    assert not logits.any()


def test_min_tokens_forbids_ends_until_they_may_come() -> None:
    for output, drafted, free in (([], [], False), ([1], [2], True), ([1, 2], [], True)):
        row = processed([0.0] * V, output, drafted, min_tokens=2, stop_token_ids=[7])
        assert all((row[end] == 0.0) is free for end in (0, 7, 11))


def test_bad_words_look_at_the_output_alone() -> None:
    word = ((9, 4),)  # the prompt ends in 9
    assert processed([0.0] * V, [], bad_words_ids=word)[4] == 0
    assert processed([0.0] * V, [9], bad_words_ids=word)[4] == -math.inf
    assert processed([0.0] * V, [], [9], bad_words_ids=word)[4] == -math.inf


# Second opinions: the same arithmetic in transformers.


def theirs(processor: Any, tokens: list[int], logits: list[float]) -> list[float]:
    scores = processor(torch.tensor([tokens]), torch.tensor([logits], dtype=torch.float64))
    return list(scores[0].tolist())


@given(logit_rows, tokens)
def test_repetition_penalty_is_that_of_transformers(logits: list[float], output: list[int]) -> None:
    other = transformers.RepetitionPenaltyLogitsProcessor(1.3)
    ours = processed(logits, output, repetition_penalty=1.3)
    assert ours == pytest.approx(theirs(other, [*PROMPT, *output], logits), abs=1e-12)


@given(st.permutations(range(V)).map(lambda row: [0.371 * n - 2 for n in row]))
def test_filters_are_those_of_transformers(logits: list[float]) -> None:
    warpers = {
        "top_k": (5, transformers.TopKLogitsWarper(5)),
        "top_p": (0.8213, transformers.TopPLogitsWarper(0.8213)),
        "min_p": (0.0713, transformers.MinPLogitsWarper(0.0713)),
        "typical_p": (0.8213, transformers.TypicalLogitsWarper(0.8213)),
    }
    for name, (value, warper) in warpers.items():
        expected = torch.tensor(theirs(warper, PROMPT, logits), dtype=torch.float64).softmax(-1)
        history = History(sequence([], **{name: value}))
        row = probabilities(np.array(logits), history)
        assert row.tolist() == pytest.approx(expected.tolist(), abs=1e-9), name


# The caller's own processors.


def no_repeats(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    if output:
        logits[output[-1]] = -math.inf
    return logits


def test_a_processor_sees_what_stands_before_each_position() -> None:
    seen = []

    def spy(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append((prompt, output))
        return logits * 2

    row = processed([1.0] * V, [3], [4, 5], logits_processors=[spy, no_repeats])
    assert seen == [(PROMPT, [3, 4, 5])]
    assert row[5] == -math.inf
    assert row[4] == 2.0


def test_a_processor_comes_after_the_other_parameters() -> None:
    def force(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(V) == 6, 0.0, -math.inf)

    history = History(sequence([], allowed_token_ids=[2], logits_processors=[force]))
    assert probabilities(np.zeros(V, np.float32), history).tolist()[6] == 1


def test_a_processor_cannot_change_the_sequence_or_the_logits() -> None:
    def vandal(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        prompt.clear()
        output.append(3)
        return logits.zero_()

    seq, logits = sequence([3], logits_processors=[vandal]), np.ones(V)
    History(seq).processed(logits)
    assert seq.tokens == [*PROMPT, 3]
    assert logits.all()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "must return a tensor of real numbers, of shape .* got  NoneType"),
        (torch.zeros(V + 1), "must return a tensor .* got torch.float32 torch.Size"),
        (torch.zeros(V, dtype=torch.complex64), "must return a tensor of real numbers"),
        (torch.zeros(V, dtype=torch.int64), "must return a tensor of real numbers"),
        (torch.zeros(V, device="meta"), "the logits processor <lambda> failed"),
        (torch.zeros(V).to_sparse(), "the logits processor <lambda> failed"),
        (torch.full((V,), math.nan), "the logits processor <lambda> returned NaN"),
        (torch.full((V,), math.inf), r"the logits processor <lambda> returned NaN or \+inf"),
        (torch.full((V,), -math.inf), "no token is left to generate"),
    ],
)
def test_processors_that_break_the_protocol(result: Any, reason: str) -> None:
    history = History(sequence([], logits_processors=[lambda prompt, output, logits: result]))
    with pytest.raises(OptionError, match=reason):
        probabilities(np.zeros(V), history)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_processor_may_compute_in_another_precision(dtype: torch.dtype) -> None:
    processor: Any = lambda prompt, output, logits: (logits + 1).to(dtype)  # noqa: E731
    history = History(sequence([], logits_processors=[processor]))
    assert history.processed(np.zeros(V, np.float32)).dtype == np.float32
    negative: Any = lambda prompt, output, logits: torch.complex(logits, logits).conj().imag  # noqa: E731
    history = History(sequence([], logits_processors=[negative]))
    assert history.processed(np.ones(V)).tolist() == [-1.0] * V


def test_what_a_processor_keeps_is_not_changed_by_the_next() -> None:
    kept = torch.arange(V, dtype=torch.float64)

    def constant(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        return kept

    def in_place(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits[logits.argmax()] -= 5
        return logits

    def spread(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.float64).expand(V)

    history = History(sequence([], logits_processors=[constant, in_place]))
    assert history.processed(np.zeros(V)).tolist() == history.processed(np.zeros(V)).tolist()
    assert kept.tolist() == list(range(V))
    history = History(sequence([], logits_processors=[spread, in_place]))
    assert history.processed(np.zeros(V)).sum() == -5


def test_a_processor_that_raises_is_named() -> None:
    def buggy(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        raise KeyError("x")

    history = History(sequence([], logits_processors=[buggy]))
    with pytest.raises(OptionError, match=r"the logits processor buggy failed: KeyError\('x'\)"):
        history.processed(np.zeros(V))
