"""What `LLM` does without being told how to draft, and the log of what it decided."""

from __future__ import annotations

from engine_cases import GREEDY, PROMPTS, TARGET, ids_of, run
from plain import plain_llm

from outpace import LLM, SamplingParams

SEEDED = SamplingParams(temperature=0.9, seed=7, max_tokens=30, ignore_eos=True)


def test_auto_says_what_plain_decoding_says_and_what_it_decided() -> None:
    with plain_llm(TARGET) as plain, LLM(TARGET) as llm:
        assert (plain.method, plain.decisions) == ("none", None)
        assert (llm.method, llm.lossy) == ("auto", None)
        log = llm.decisions
        assert log is not None
        assert log.num_steps == 0
        for params in (GREEDY, SEEDED):
            outputs = run(llm, params)
            assert ids_of(outputs) == ids_of(run(plain, params))
            assert all(output.stats.num_drafter_errors == 0 for output in outputs)
        assert llm.decisions is log
        assert log.num_steps > 0
        drafted = sum(totals.drafted for totals in log.totals.values())
        assert drafted > 0
        assert sum(totals.accepted for totals in log.totals.values()) <= drafted


def test_requests_that_are_decoded_plainly_are_not_decided_about() -> None:
    with LLM(TARGET) as llm:
        log = llm.decisions
        assert log is not None
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS[:2]]
        llm.generate(prompts, GREEDY, speculative=False)
        assert log.num_steps == 0
        llm.generate(prompts, GREEDY)
        assert log.num_steps > 0


def test_a_length_alone_bounds_the_drafts_of_auto() -> None:
    with LLM(TARGET, num_speculative_tokens=2) as llm:
        run(llm)
        log = llm.decisions
        assert log is not None
        lengths = {request.drafted for record in log.tail(4096) for request in record.requests}
        assert max(lengths) in (1, 2)
    with LLM(TARGET, num_speculative_tokens=0) as llm:
        run(llm, prompts=PROMPTS[:2])
        assert llm.decisions is not None
        assert llm.decisions.num_steps == 0
