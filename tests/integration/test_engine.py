"""The engine's promises, on tiny models in float64 where equality may be demanded.

The names refer to kinds of faults that other engines had; see docs/losslessness.md.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripted import always_wrong, oracle, random_tokens, right_for, scripted
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.errors import ContextLengthError, ModelError, OptionError, OutpaceError
from outpace.types import Draft, RequestOutput, Sequence

VOCAB = 96
TARGET = tiny_model(seed=1, max_len=256)
PROMPT = [5, 6, 7, 8, 9, 10, 11]
PROMPTS = [PROMPT, [40, 41], list(range(2, 50)), [3], [60, 61, 62] * 5, [17, 4], [90], [33, 2, 8]]
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def run(llm: LLM, params: Any = GREEDY, prompts: list[list[int]] = PROMPTS) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def speculating(propose: Any, k: int = 4, **options: Any) -> LLM:
    config = {"method": scripted(propose), "num_speculative_tokens": k}
    return LLM(TARGET, speculative_config=config, **options)


@pytest.fixture(scope="module")
def answers() -> dict[tuple[int, ...], list[int]]:
    """Plain greedy continuations, by prompt."""
    with LLM(TARGET, max_num_seqs=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        return {tuple(o.prompt_token_ids): o.outputs[0].token_ids for o in run(llm, params)}


def expected(answers: dict[tuple[int, ...], list[int]], count: int = 60) -> list[list[int]]:
    return [answers[tuple(ids)][:count] for ids in PROMPTS]


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
    with LLM(TARGET) as plain, speculating(oracle(answers), 5) as llm:
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
    with LLM(TARGET) as plain, speculating(oracle(answers), 5) as llm:
        for wanted, output in zip(run(plain, params), run(llm, params), strict=True):
            assert len(output.outputs[0].logprobs or []) == len(output.outputs[0].token_ids)
            assert _close(output, wanted)


def test_seeds_hold_whatever_runs_beside_them(answers: Any) -> None:
    def params(seed: int | None) -> SamplingParams:
        return SamplingParams(temperature=1.2, seed=seed, max_tokens=30, ignore_eos=True)

    alone = {}
    with LLM(TARGET) as plain:
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
    with LLM(TARGET, max_model_len=64) as plain:
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
    from outpace.engine import setup as module

    engine = module.Engine
    monkeypatch.setattr(
        module, "Engine", lambda *a, **kw: engine(*a, max_num_batched_tokens=chunk, **kw)
    )
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
        with LLM(TARGET) as fresh:
            assert ids_of(run(fresh, params, [[*history, 12, 13]])) == ids_of([second])


def test_a_drafter_that_raises_costs_only_the_drafts(answers: Any, caplog: Any) -> None:
    perfect = oracle(answers)

    def propose(seq: Sequence, budget: int) -> Draft:
        if seq.num_prompt == len(PROMPT) and seq.num_output > 10:
            raise RuntimeError("boom")
        return perfect(seq, budget)

    with speculating(propose, 4) as llm:
        outputs = run(llm)
    assert ids_of(outputs) == expected(answers)
    errors = [output.stats.num_drafter_errors for output in outputs]
    assert errors == [1] + [0] * (len(PROMPTS) - 1)
    assert "goes on plain" in caplog.text


FLAT = np.full(VOCAB, 1 / VOCAB)


@pytest.mark.parametrize(
    "bad",
    [
        Draft((1,) * 9),
        Draft(("x",)),
        Draft((1.5,)),
        Draft((1,), q=(torch.from_numpy(FLAT),)),
        Draft((1,), q=(FLAT[None],)),
        Draft((1,), q=(list(FLAT),)),
        Draft((1,), q=(FLAT * 2,)),
        Draft((1,), q=(FLAT * np.nan,)),
        Draft((1,), q=(FLAT - FLAT,)),
        Draft((VOCAB,), q=(FLAT,)),
        Draft((1,), q=(np.append(FLAT, [-1, 1]),)),
    ],
    ids=[
        *("too long", "text", "float", "q tensor", "q 2d", "q list", "q sums to 2", "q NaN"),
        *("q zero", "q without the token", "q negative"),
    ],
)
def test_a_drafter_that_breaks_its_contract(bad: Draft, answers: Any) -> None:
    with speculating(lambda seq, budget: bad, 4) as llm:
        outputs = run(llm)
    assert ids_of(outputs) == expected(answers)
    assert all(output.stats.num_drafter_errors == 1 for output in outputs)


@pytest.mark.parametrize(
    "change",
    [
        lambda seq: seq.tokens.append(5),
        lambda seq: seq.tokens.pop(),
        lambda seq: setattr(seq, "num_prompt", 0),
        lambda seq: seq.tokens.__setitem__(0, 9),
    ],
)
def test_a_drafter_that_changes_a_sequence(change: Any, answers: Any) -> None:
    def propose(seq: Sequence, budget: int) -> Draft:
        change(seq)
        return Draft((1,))

    with speculating(propose, 4) as llm:
        outputs = run(llm)
    assert ids_of(outputs) == expected(answers)
    assert all(output.stats.num_drafter_errors == 1 for output in outputs)


def test_closing_a_stream_that_another_thread_reads(answers: Any) -> None:
    endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    with speculating(oracle(answers), 2) as llm:
        for _ in range(5):
            stream = llm.stream({"prompt_token_ids": PROMPT}, endless)
            reader = threading.Thread(target=stream.drain)
            reader.start()
            next_step = threading.Event()
            next_step.wait(0.01)
            stream.close()
            reader.join(timeout=30)
            assert not reader.is_alive()


async def test_closing_an_async_stream_that_another_task_reads(answers: Any) -> None:
    endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    with speculating(oracle(answers), 2) as llm:
        stream = llm.astream({"prompt_token_ids": PROMPT}, endless)

        async def read() -> int:
            return sum([len(event.token_ids) async for event in stream])

        reader = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        await stream.aclose()
        assert await asyncio.wait_for(reader, 30) >= 0


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_ends_the_thread_nobody_waits_for_ever(error: type[BaseException]) -> None:
    def propose(seq: Sequence, budget: int) -> Draft:
        raise error

    llm = speculating(propose, 2)
    with pytest.raises(RuntimeError, match="thread ended"):
        run(llm)
    with pytest.raises(OutpaceError, match="was closed"):
        run(llm)
    llm.close()


def test_leaving_the_interpreter_while_a_request_runs() -> None:
    script = """
import tiny
from outpace import LLM, SamplingParams
llm = LLM(tiny.tiny_model(max_len=100000), max_model_len=100000)
stream = llm.stream("abc", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
next(stream)
"""
    folder = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_logits_that_are_not_numbers_are_an_error(monkeypatch: Any) -> None:
    forward = TARGET.decoder.forward

    def broken(*args: Any) -> Any:
        logits, hidden = forward(*args)
        return logits * float("nan"), hidden

    with LLM(TARGET) as llm:
        monkeypatch.setattr(TARGET.decoder, "forward", broken)
        for params in (GREEDY, SamplingParams(temperature=1.0)):
            with pytest.raises(ModelError, match="NaN"):
                run(llm, params)


def test_a_step_never_exceeds_its_token_budget(answers: Any) -> None:
    sizes: list[int] = []
    forward = TARGET.decoder.forward

    def counting(batch: Any, *args: Any) -> Any:
        sizes.append(len(batch.token_ids))
        return forward(batch, *args)

    TARGET.decoder.forward = counting  # type: ignore[method-assign]
    try:
        with speculating(oracle(answers), 10_000) as llm:
            outputs = run(llm, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    finally:
        del TARGET.decoder.forward
    assert ids_of(outputs) == expected(answers, 256)
    assert max(sizes) <= 512


@pytest.mark.parametrize("given", ["hello", ["hi"], {"role": "user", "content": "x"}, 5, None])
def test_chat_takes_conversations_only(given: Any) -> None:
    with LLM(TARGET) as llm, pytest.raises(OptionError, match="a conversation is"):
        llm.chat(given, GREEDY)


@pytest.mark.parametrize("given", [5, None, 2.5])
def test_generate_takes_prompts_only(given: Any) -> None:
    with LLM(TARGET) as llm:
        with pytest.raises(OptionError, match="prompts are"):
            llm.generate(given)
        with pytest.raises(OptionError, match="sampling_params must be"):
            llm.generate("abc", given or 5)


@pytest.mark.parametrize(
    "values",
    [
        {"stop": 5},
        {"stop_token_ids": 5},
        {"temperature": 10**400},
        {"top_p": 10**400},
        {"n": 2},
        {"presence_penalty": 0.5},
    ],
)
def test_sampling_parameters_are_applied_or_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(values))):
        SamplingParams(**values)
    with pytest.raises(OptionError):
        SamplingParams.from_dict(values)


def test_cancelling_frees_the_row_at_once(answers: Any) -> None:
    endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    with speculating(oracle(answers), 2, max_num_seqs=2) as llm:
        for read in range(12):
            stream = llm.stream({"prompt_token_ids": PROMPT}, endless)
            for _ in range(read % 4):
                next(stream)
            stream.close()
            assert stream.output.outputs[0].finish_reason == "abort"
            assert (
                stream.output.outputs[0].token_ids
                == answers[tuple(PROMPT)][: stream.output.stats.num_output_tokens]
            )
        assert ids_of(run(llm)) == expected(answers)


def test_random_cancellation_from_many_threads(answers: Any) -> None:
    failures: list[Exception] = []
    with speculating(right_for(answers, VOCAB, lambda seq: 1), 3, max_num_seqs=3) as llm:

        def work(seed: int) -> None:
            rng = random.Random(seed)
            try:
                for _ in range(8):
                    prompt = rng.choice(PROMPTS)
                    with llm.stream({"prompt_token_ids": prompt}, GREEDY) as stream:
                        for count, _ in enumerate(stream):
                            if count == rng.randrange(60):
                                break
                    got = stream.output.outputs[0].token_ids
                    assert got == answers[tuple(prompt)][: len(got)]
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert ids_of(run(llm)) == expected(answers)


def test_a_failed_step_ends_its_requests_and_the_loop_goes_on(
    answers: Any, monkeypatch: Any
) -> None:
    with speculating(oracle(answers), 2) as llm:
        decoder = TARGET.decoder
        monkeypatch.setattr(decoder, "forward", _raise, raising=True)
        with pytest.raises(RuntimeError, match="out of memory"):
            run(llm)
        monkeypatch.undo()
        assert ids_of(run(llm)) == expected(answers)


def _raise(*_: object) -> None:
    raise RuntimeError("out of memory")


async def test_async_streams_run_together_and_cancel(answers: Any) -> None:
    with speculating(oracle(answers), 3, max_num_seqs=4) as llm:

        async def collect(prompt: list[int]) -> list[int]:
            stream = llm.astream({"prompt_token_ids": prompt}, GREEDY)
            return [token async for event in stream for token in event.token_ids]

        results = await asyncio.gather(*(collect(prompt) for prompt in PROMPTS))
        assert list(results) == expected(answers)
        async with llm.astream({"prompt_token_ids": PROMPT}, GREEDY) as stream:
            await anext(stream)
        assert stream.output.outputs[0].finish_reason in ("abort", "length")
        task = asyncio.create_task(collect(PROMPT))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ids_of(run(llm)) == expected(answers)


def test_speculation_can_be_left_out_per_request(answers: Any) -> None:
    with speculating(oracle(answers), 4) as llm:
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        outputs = llm.generate(prompts, GREEDY, speculative=False)
    assert ids_of(outputs) == expected(answers)
    assert all(output.stats.num_draft_tokens == 0 for output in outputs)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ({"prompt_token_ids": []}, None, None),
        ({"prompt_token_ids": [VOCAB]}, OptionError, "outside the model.s vocabulary"),
        ({"prompt_token_ids": [-1]}, OptionError, "outside the model.s vocabulary"),
        ({"prompt_token_ids": ["a"]}, OptionError, "whole numbers"),
        ({"prompt_token_ids": [True]}, OptionError, "whole numbers"),
        ({"prompt_token_ids": [2] * 256}, ContextLengthError, "256 tokens"),
        ({"tokens": [1]}, OptionError, "prompt_token_ids"),
        (3.5, OptionError, "a prompt is"),
    ],
)
def test_bad_prompts(prompt: Any, error: type[Exception] | None, message: str | None) -> None:
    with LLM(TARGET) as llm:
        if error is None:
            # An empty prompt starts from the model's begin token.
            assert llm.generate([prompt], GREEDY)[0].prompt_token_ids == [1]
        else:
            with pytest.raises(error, match=message):
                llm.generate([prompt], GREEDY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 2}, "one device"),
        ({"trust_remote_code": True}, "never executed"),
        ({"gpu_memory_utilization": 0.9}, "gpu_memory_utilization is not supported"),
        ({"max_model_len": 257}, "256 positions"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"kv_cache_bytes": 10}, "GB of cache"),
        ({"speculative_config": {"method": "magic"}}, "known methods"),
        ({"speculative_config": {"method": "ngram", "beam": 3}}, "beam is not supported"),
        ({"speculative_config": {"num_speculative_tokens": 3}}, "without a `method`"),
        ({"speculative_config": {"method": "draft_model"}}, "needs a draft model"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": -1}}, "at least 0"),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_min": 5}}, "must not exceed"),
        ({"speculative_config": "ngram"}, "must be a mapping"),
        ({"num_speculative_tokens": 3}, "without a `method`"),
        ({"speculative_model": "no-such-model"}, "no-such-model"),
    ],
)
def test_options_are_honoured_or_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as info:
        LLM(TARGET, **options)
    assert type(info.value).__module__ == "outpace.errors"


def test_mismatched_vocabularies_are_refused_by_token() -> None:
    draft = tiny_model(seed=2, vocab_size=90)
    with pytest.raises(OptionError, match="90"):
        LLM(TARGET, speculative_model=draft, num_speculative_tokens=3)


def test_the_shorthand_of_articles() -> None:
    with LLM(
        model=TARGET, speculative_model="[ngram]", num_speculative_tokens=5, tensor_parallel_size=1
    ) as llm:
        outputs = llm.generate(["the cat sat on the mat"], SamplingParams(temperature=0))
        assert llm.method == "ngram"
        for output in outputs:
            assert isinstance(output.outputs[0].text, str)


def test_a_leak_is_found_when_idle(answers: Any) -> None:
    class Leaking(scripted(oracle(answers))):  # type: ignore[misc]
        def check_integrity(self) -> None:
            raise AssertionError("rows were not given back")

    llm = LLM(TARGET, speculative_config={"method": Leaking})
    assert ids_of(run(llm)) == expected(answers)
    with pytest.raises(AssertionError, match="not given back"):
        llm.close()


def test_after_close_there_is_a_clear_message() -> None:
    llm = LLM(TARGET)
    llm.close()
    llm.close()
    with pytest.raises(OutpaceError, match="was closed"):
        run(llm)
