"""The engine's promises, on tiny models in float64 where equality may be demanded.

The names refer to kinds of faults that other engines had; see docs/losslessness.md.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_cases import (
    GREEDY,
    PROMPT,
    PROMPTS,
    TARGET,
    VOCAB,
    count_fed_tokens,
    expected,
    feed_in_chunks,
    ids_of,
    run,
    speculating,
)
from plain import plain_llm
from scripted import always_wrong, oracle, random_tokens, right_for
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.outputs import RequestOutput
from outpace.types import Draft, Sequence


@pytest.mark.parametrize("k", range(1, 9))
def test_a_perfect_drafter_emits_k_plus_one_tokens_a_step(k: int, answers: Any) -> None:
    with speculating(oracle(answers), k) as llm:
        outputs = run(llm)
    assert ids_of(outputs) == expected(answers)
    for output in outputs:
        assert output.stats.num_steps == -(-60 // (k + 1))
        assert output.stats.num_accepted_tokens == output.stats.num_draft_tokens


@pytest.mark.parametrize("k", [1, 4, 8])
def test_an_always_wrong_drafter_emits_one_token_a_step(k: int, answers: Any) -> None:
    with speculating(always_wrong(answers, VOCAB), k) as llm:
        outputs = run(llm)
    assert ids_of(outputs) == expected(answers)
    assert all(o.stats.num_steps == 60 and o.stats.num_accepted_tokens == 0 for o in outputs)


@pytest.mark.parametrize("k", range(1, 9))
def test_draft_equal_to_target_accepts_everything(k: int) -> None:
    config = {"method": "draft_model", "model": TARGET, "num_speculative_tokens": k}
    with LLM(TARGET, speculative_config=config) as llm:
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        (output,) = run(llm, params, [PROMPT])
    assert len(output.outputs[0].token_ids) == 200
    assert output.stats.num_accepted_tokens == output.stats.num_draft_tokens > 0


def test_rows_of_a_batch_accept_different_lengths(answers: Any) -> None:
    """Row i is right for i positions; each row equals its own run (fault: batch mixes rows)."""
    propose = right_for(answers, VOCAB, lambda seq: seq.seq_id % 8)
    params = [
        SamplingParams(temperature=0, max_tokens=20 + 5 * i, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    with speculating(propose, 7) as llm:
        outputs = run(llm, params)
    assert ids_of(outputs) == [a[: 20 + 5 * i] for i, a in enumerate(expected(answers, 200))]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_steps_with_and_without_drafts_mix(batch: int, answers: Any) -> None:
    """Draft lengths change from step to step, some steps have none (fault: stale state)."""
    lengths = [3, 0, 2, 0, 0, 1, 4]

    def propose(seq: Sequence, budget: int) -> Draft:
        count = min(budget, lengths[seq.num_output % len(lengths)])
        rng = random.Random(seq.num_output * 31 + seq.seq_id)
        return right_for(answers, VOCAB, lambda _: rng.randrange(5))(seq, count)

    with speculating(propose, 4, max_num_seqs=batch) as llm:
        assert ids_of(run(llm)) == expected(answers)


def test_random_guesses_in_and_out_of_the_vocabulary(answers: Any) -> None:
    with speculating(random_tokens(2 * VOCAB), 6) as llm:
        outputs = run(llm)
    assert ids_of(outputs) == expected(answers)


@pytest.mark.parametrize("position", range(12))
def test_an_end_token_inside_a_draft_ends_the_text(position: int, answers: Any) -> None:
    answer = answers[tuple(PROMPT)]
    stop = answer[position]
    cut = answer[: answer.index(stop) + 1]
    params = SamplingParams(temperature=0, max_tokens=60, stop_token_ids=[stop], ignore_eos=True)
    with speculating(oracle(answers), 6) as llm:
        (output,) = run(llm, params, [PROMPT])
        follow_up = run(llm, GREEDY, [PROMPT])
    assert output.outputs[0].token_ids == cut
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason == stop
    assert output.stats.num_output_tokens == len(cut)
    assert output.stats.num_accepted_tokens <= len(cut)
    assert ids_of(follow_up) == [answer[:60]]


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("cap", range(1, 9))
@pytest.mark.parametrize("position", range(8))
def test_the_first_of_stop_and_length_wins(k: int, cap: int, position: int, answers: Any) -> None:
    answer = answers[tuple(PROMPT)]
    stop = answer[position]
    params = SamplingParams(temperature=0, max_tokens=cap, stop_token_ids=[stop], ignore_eos=True)
    with speculating(oracle(answers), k) as llm:
        (output,) = run(llm, params, [PROMPT])
    first = answer.index(stop)
    assert output.outputs[0].token_ids == answer[: min(first + 1, cap)]
    assert output.outputs[0].finish_reason == ("stop" if first < cap else "length")


@pytest.mark.parametrize("offset", range(10))
def test_a_stop_string_at_every_offset(offset: int, answers: Any) -> None:
    answer = answers[tuple(PROMPT)]
    text = TARGET.tokenizer.decode(answer[:60])
    stop = text[offset : offset + 3]
    params = SamplingParams(temperature=0, max_tokens=60, stop=stop, logprobs=0, ignore_eos=True)
    with plain_llm(TARGET) as plain, speculating(oracle(answers), 5) as llm:
        (wanted,), (output,) = run(plain, params, [PROMPT]), run(llm, params, [PROMPT])
        with llm.stream({"prompt_token_ids": PROMPT}, params) as stream:
            streamed = "".join(event.text for event in stream)
    assert output.outputs == wanted.outputs or _close(output, wanted)
    assert output.outputs[0].text == text[: text.index(stop)] == streamed
    assert output.outputs[0].finish_reason == "stop"


def _close(a: RequestOutput, b: RequestOutput) -> bool:
    """Equal but for rounding in the logprobs."""
    one, two = a.outputs[0], b.outputs[0]
    assert one.logprobs is not None
    assert two.logprobs is not None
    for x, y in zip(one.logprobs, two.logprobs, strict=True):
        assert set(x) == set(y)
        assert all(abs(x[t].logprob - y[t].logprob) < 1e-9 for t in x)
    one.logprobs = two.logprobs = None
    return one == two


def test_logprobs_are_the_targets_own(answers: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, logprobs=4, ignore_eos=True)
    with plain_llm(TARGET) as plain, speculating(oracle(answers), 5) as llm:
        for wanted, output in zip(run(plain, params), run(llm, params), strict=True):
            assert len(output.outputs[0].logprobs or []) == len(output.outputs[0].token_ids)
            assert _close(output, wanted)


def test_seeds_hold_whatever_runs_beside_them(answers: Any) -> None:
    def params(seed: int | None) -> SamplingParams:
        return SamplingParams(temperature=1.2, seed=seed, max_tokens=30, ignore_eos=True)

    alone = {}
    with plain_llm(TARGET) as plain:
        for seed in (1, 2):
            alone[seed] = ids_of(run(plain, params(seed), [PROMPT]))[0]
    assert alone[1] != alone[2]
    with speculating(random_tokens(VOCAB), 4) as llm:
        for seeds in ([None, 1, None, 2], [2, 1, 1, 2], [1, None, None, None]):
            mixed = [GREEDY if s is None else params(s) for s in seeds]
            outputs = ids_of(run(llm, mixed, [PROMPT] * 4))
            for seed, output in zip(seeds, outputs, strict=True):
                assert output == (answers[tuple(PROMPT)][:60] if seed is None else alone[seed])


def test_unseeded_requests_are_independent() -> None:
    params = SamplingParams(temperature=1.5, max_tokens=20, ignore_eos=True)
    with speculating(random_tokens(VOCAB), 4) as llm:
        outputs = {tuple(ids) for _ in range(20) for ids in ids_of(run(llm, params, [PROMPT]))}
    assert len(outputs) >= 19


def test_filters_that_leave_one_token_are_greedy(answers: Any) -> None:
    for changes in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-6}):
        for seed in (None, 3):
            values = {"temperature": 1.7, "seed": seed} | changes
            params = SamplingParams(max_tokens=40, ignore_eos=True, **values)
            with speculating(right_for(answers, VOCAB, lambda seq: 2), 4) as llm:
                assert ids_of(run(llm, params)) == expected(answers, 40)


def test_past_the_draft_models_context_it_goes_on_plain() -> None:
    draft = tiny_model(seed=1, max_len=32)
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 4}
    prompt = list(range(2, 32))
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with plain_llm(TARGET, max_model_len=64) as plain:
        wanted = ids_of(run(plain, params, [prompt]))
    with LLM(TARGET, max_model_len=64, speculative_config=config) as llm:
        (output,) = run(llm, params, [prompt])
    assert ids_of([output]) == wanted
    assert 0 < output.stats.num_draft_tokens <= 4
    assert output.stats.num_drafter_errors == 0


def test_up_to_the_last_position_of_the_context(answers: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    with speculating(oracle(answers), 5) as llm:
        outputs = run(llm, params)
    for output in outputs:
        assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 256
        assert output.outputs[0].finish_reason == "length"
    assert ids_of(outputs) == expected(answers, 256)


@pytest.mark.parametrize("chunk", [1, 3, 16, 512])
def test_prompts_fed_in_chunks(chunk: int, answers: Any, monkeypatch: Any) -> None:
    feed_in_chunks(chunk, monkeypatch)
    with speculating(oracle(answers), 4) as llm:
        assert ids_of(run(llm)) == expected(answers)


def test_more_requests_than_rows(answers: Any) -> None:
    with speculating(oracle(answers), 3, max_num_seqs=2) as llm:
        assert ids_of(run(llm, GREEDY, PROMPTS * 3)) == expected(answers) * 3


def test_the_next_turn_reuses_the_cache(answers: Any) -> None:
    with speculating(oracle(answers), 3, max_num_seqs=2) as llm:
        (first,) = run(llm, GREEDY, [PROMPT])
        history = PROMPT + first.outputs[0].token_ids
        params = SamplingParams(temperature=0, max_tokens=1)
        (second,) = run(llm, params, [[*history, 12, 13]])
        assert second.metrics.num_cached_tokens >= len(history) - 1
        with plain_llm(TARGET) as fresh:
            assert ids_of(run(fresh, params, [[*history, 12, 13]])) == ids_of([second])


def test_a_step_never_exceeds_its_token_budget(answers: Any, monkeypatch: Any) -> None:
    sizes = count_fed_tokens(monkeypatch)
    with speculating(oracle(answers), 10_000) as llm:
        outputs = run(llm, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert ids_of(outputs) == expected(answers, 256)
    assert max(sizes) <= 512


def test_speculation_can_be_left_out_per_request(answers: Any) -> None:
    with speculating(oracle(answers), 4) as llm:
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        outputs = llm.generate(prompts, GREEDY, speculative=False)
    assert ids_of(outputs) == expected(answers)
    assert all(output.stats.num_draft_tokens == 0 for output in outputs)
