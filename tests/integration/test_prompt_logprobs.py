"""Log-probabilities of the prompt: those of one full pass of the model, however it was fed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_cases import (
    PROMPT,
    TARGET,
    VOCAB,
    count_fed_tokens,
    feed_in_chunks,
    run,
    speculating,
)
from plain import plain_llm
from scripted import random_tokens
from tiny import new_runner, new_sequence

from outpace import SamplingParams
from outpace.outputs import Logprob, RequestOutput

LONG = [2 + (7 * i) % 90 for i in range(75)]


def scoring(num_top: int = 2, **changes: Any) -> SamplingParams:
    values = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
    return SamplingParams(prompt_logprobs=num_top, **(values | changes))


def reference(prompt: list[int]) -> torch.Tensor:
    """Log-softmax after each token of the prompt, from one pass over all of it, [n, V]."""
    runner = new_runner(TARGET)
    seq = new_sequence(prompt)
    runner.open(seq)
    scores = runner.extend([seq], score_prompt=[True])
    alone = new_runner(TARGET)
    alone.open(seq)
    assert (scores.logits[scores.rows[0]] - alone.extend([seq]).logits).abs().max() < 1e-12
    return torch.log_softmax(scores.logits[scores.prompt_rows[0]], -1)


def check(output: RequestOutput, num_top: int) -> None:
    prompt, scored = output.prompt_token_ids, output.prompt_logprobs
    assert scored is not None
    assert scored[0] is None
    assert len(scored) == len(prompt)
    for row, token, entries in zip(reference(prompt), prompt[1:], scored[1:], strict=False):
        assert entries is not None
        ranked = row.argsort(descending=True).tolist()
        assert set(entries) == {token, *ranked[:num_top]}
        for token_id, entry in entries.items():
            assert entry.logprob == pytest.approx(float(row[token_id]), abs=1e-9)
            assert entry.rank == ranked.index(token_id) + 1
            assert entry.decoded_token == TARGET.tokenizer.token_text(token_id)


@pytest.mark.parametrize("chunk", [1, 7, 64, 65, 512])
def test_they_do_not_depend_on_how_the_prompt_was_cut(chunk: int, monkeypatch: Any) -> None:
    feed_in_chunks(chunk, monkeypatch)
    with plain_llm(TARGET) as llm:
        for output in run(llm, scoring(), [LONG, PROMPT]):
            check(output, 2)


@pytest.mark.parametrize("num_top", [0, 1, VOCAB])
def test_with_drafts_batch_mates_and_several_answers(num_top: int) -> None:
    params = [
        scoring(num_top),
        scoring(num_top, n=3, temperature=1.0, seed=1),
        SamplingParams(temperature=1.0, max_tokens=20),
        scoring(num_top, max_tokens=1),
    ]
    with speculating(random_tokens(VOCAB), 4, max_num_seqs=3) as llm:
        outputs = run(llm, params, [LONG, LONG, PROMPT, PROMPT])
        plain = run(llm, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), [LONG])
    for index in (0, 1, 3):
        check(outputs[index], num_top)
    assert outputs[2].prompt_logprobs is None
    assert outputs[0].outputs == plain[0].outputs


def test_what_is_cached_is_fed_again(monkeypatch: Any) -> None:
    """Prefix reuse would leave positions without logits."""
    with plain_llm(TARGET, max_num_seqs=2) as llm:
        run(llm, scoring(), [LONG])
        (reused,) = run(llm, SamplingParams(max_tokens=1), [LONG])
        assert reused.metrics.num_cached_tokens == len(LONG) - 1
        fed = count_fed_tokens(monkeypatch)
        (output,) = run(llm, scoring(max_tokens=1), [LONG])
    assert output.metrics.num_cached_tokens == 0
    assert sum(fed) == len(LONG)
    check(output, 2)


def test_one_token_has_none_before_it() -> None:
    with plain_llm(TARGET) as llm:
        (output,) = run(llm, scoring(), [[5]])
    assert output.prompt_logprobs == [None]


@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_can_be_scored_without_an_answer(n: int) -> None:
    with speculating(random_tokens(VOCAB), 4) as llm:
        (output,) = run(llm, scoring(max_tokens=0, n=n), [LONG])
    check(output, 2)
    assert output.finished
    assert [answer.token_ids for answer in output.outputs] == [[]] * n
    assert {answer.finish_reason for answer in output.outputs} == {"length"}
    assert output.stats.num_output_tokens == 0


def test_they_are_raw() -> None:
    """Neither temperature nor penalties nor filters change what is reported."""
    params = scoring(
        temperature=0.3,
        seed=1,
        top_k=3,
        repetition_penalty=1.5,
        logit_bias={5: 20.0},
        allowed_token_ids=[5, 6, 7],
    )
    with plain_llm(TARGET) as llm:
        check(run(llm, params, [LONG])[0], 2)


def test_logits_of_a_long_prompt_are_never_held_together(monkeypatch: Any) -> None:
    from outpace.engine import engine as module

    sizes: list[int] = []
    report = module.raw_logprobs

    def counting(logits: torch.Tensor, *args: Any) -> Any:
        sizes.append(len(logits))
        return report(logits, *args)

    monkeypatch.setattr(module, "raw_logprobs", counting)
    feed_in_chunks(100, monkeypatch)
    with plain_llm(TARGET) as llm:
        (output,) = run(llm, scoring(), [LONG * 3])
    assert sum(sizes) == 3 * len(LONG) - 1
    assert max(sizes) <= module.SCORED_TOGETHER
    check(output, 2)


def test_an_entry_is_a_logprob() -> None:
    with plain_llm(TARGET) as llm:
        (output,) = run(llm, scoring(0), [PROMPT])
    assert output.prompt_logprobs is not None
    entries = output.prompt_logprobs[1]
    assert entries is not None
    assert isinstance(entries[PROMPT[1]], Logprob)
