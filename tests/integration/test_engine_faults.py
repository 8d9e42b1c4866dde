"""Drafters that fail, callers that leave, steps that raise: the others go on, nobody hangs."""

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
from engine_cases import GREEDY, PROMPT, PROMPTS, TARGET, VOCAB, expected, ids_of, run, speculating
from plain import plain_llm
from scripted import oracle, right_for, scripted

from outpace import LLM, SamplingParams
from outpace.errors import ModelError, OutpaceError
from outpace.types import Draft, Sequence


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
plain = {"method": "none"}
llm = LLM(tiny.tiny_model(max_len=100000), max_model_len=100000, speculative_config=plain)
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

    with plain_llm(TARGET) as llm:
        monkeypatch.setattr(TARGET.decoder, "forward", broken)
        for params in (GREEDY, SamplingParams(temperature=1.0)):
            with pytest.raises(ModelError, match="NaN"):
                run(llm, params)


def test_a_request_that_gets_no_cache_row_ends_with_the_error(
    answers: Any, monkeypatch: Any
) -> None:
    with speculating(oracle(answers), 2, max_num_seqs=2) as llm:
        target = llm._engine._target
        with monkeypatch.context() as broken:

            def no_row(*args: Any, **named: Any) -> int:
                raise RuntimeError("no row")

            broken.setattr(target, "open", no_row)
            with pytest.raises(RuntimeError, match="no row"):
                run(llm, GREEDY, PROMPTS[:1])
        assert ids_of(run(llm)) == expected(answers)


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


def test_a_failed_step_leaves_those_that_wait(monkeypatch: Any) -> None:
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS[:2]]
    with plain_llm(TARGET, max_num_seqs=1) as llm:
        wanted = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
        forward, num_passes = TARGET.decoder.forward, 0

        def third_breaks(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_passes
            num_passes += 1
            return _raise() if num_passes == 3 else forward(*args, **kwargs)

        monkeypatch.setattr(TARGET.decoder, "forward", third_breaks)
        first, second = (llm.stream(prompt, GREEDY) for prompt in prompts)
        with pytest.raises(RuntimeError, match="out of memory"):
            first.drain()
        assert second.drain().outputs[0].token_ids == wanted
        state = llm.state()
    assert (state.num_failed_steps, state.last_error) == (1, "RuntimeError")
    assert "memory" not in str(state)


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


def test_a_leak_is_found_when_idle(answers: Any) -> None:
    class Leaking(scripted(oracle(answers))):  # type: ignore[misc]
        def check_integrity(self) -> None:
            raise AssertionError("rows were not given back")

    llm = LLM(TARGET, speculative_config={"method": Leaking})
    assert ids_of(run(llm)) == expected(answers)
    with pytest.raises(AssertionError, match="not given back"):
        llm.close()


def test_after_close_there_is_a_clear_message() -> None:
    llm = plain_llm(TARGET)
    llm.close()
    llm.close()
    with pytest.raises(OutpaceError, match="was closed"):
        run(llm)
