"""What each event says of how its tokens came about, and the running totals beside it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from engine_cases import GREEDY, PROMPT, VOCAB, expected, speculating
from plain import plain_llm
from scripted import always_wrong, oracle, right_for
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.outputs import Event
from outpace.types import Draft, Sequence

ASKED = {"prompt_token_ids": PROMPT}


def events_of(llm: LLM, params: SamplingParams = GREEDY) -> list[Event]:
    with llm.stream(ASKED, params) as stream:
        return list(stream)


@pytest.mark.parametrize("num_right", range(5))
def test_every_token_says_how_it_was_decided(num_right: int, answers: Any) -> None:
    with speculating(right_for(answers, VOCAB, lambda seq: num_right), 4) as llm:
        events = events_of(llm)
    own = "bonus" if num_right == 4 else "recovered"
    assert events[0].kinds == ("accepted",) * num_right + (own,)
    # Near the end of the answer there is room for shorter drafts only.
    whole = [event for event in events if len(event.drafted) == 4]
    assert len(whole) >= len(events) - 4
    for event in whole:
        assert event.drafted[:num_right] == event.token_ids[:num_right]
        assert event.kinds == events[0].kinds
    for event in events:
        assert len(event.kinds) == len(event.origins) == len(event.token_ids)
        assert [kind == "accepted" for kind in event.kinds] == [bool(o) for o in event.origins]


def test_the_target_alone_is_plain(answers: Any) -> None:
    with plain_llm(tiny_model()) as llm:
        events = events_of(llm)
    assert {event.kinds for event in events} == {("plain",)}
    assert all(event.drafted == () for event in events)


def test_in_a_tree_the_kind_is_that_of_the_path_taken(answers: Any) -> None:
    perfect, is_right = oracle(answers), itertools.cycle([True, False])

    def leaf_or_branch(seq: Sequence, budget: int) -> Draft:
        right = perfect(seq, 2).token_ids
        if len(right) < 2 or budget < 3:
            return Draft()
        wrong = (right[0] + 1) % VOCAB
        # The right one stands beside a wrong one; what follows it is right every other time.
        follower = right[1] if next(is_right) else (right[1] + 1) % VOCAB
        return Draft((wrong, right[0], follower), parents=(-1, -1, 1), origin="tree")

    with speculating(leaf_or_branch, 3) as llm:
        events = events_of(llm)
    kinds = {event.kinds for event in events if len(event.drafted) == 3}
    assert kinds == {("accepted", "recovered"), ("accepted", "accepted", "bonus")}


def test_running_totals_are_those_of_all_answers(answers: Any) -> None:
    with speculating(right_for(answers, VOCAB, lambda seq: seq.num_output % 3), 4) as llm:
        (first,) = llm.generate(ASKED, GREEDY)
        (second,) = llm.generate(ASKED, GREEDY, speculative=False)
        totals = llm.speculation
    assert totals.num_output_tokens == 2 * len(expected(answers)[0])
    assert totals.num_draft_tokens == first.stats.num_draft_tokens > 0
    assert totals.accepted_per_position == first.stats.accepted_per_position
    assert totals.num_steps == first.stats.num_steps + second.stats.num_steps


def test_the_state_while_running_and_after() -> None:
    with plain_llm(tiny_model(), max_num_seqs=2) as llm:
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        streams = [llm.stream(ASKED, params) for _ in range(3)]
        for stream in streams[:2]:
            next(stream)
        state = llm.state()
        assert (state.num_running, state.num_waiting, state.num_rows) == (2, 1, 2)
        assert 0 < state.num_cached_tokens <= state.cache_capacity_tokens
        for stream in streams:
            stream.close()
        state = llm.state()
        assert (state.num_running, state.num_waiting, state.num_cached_tokens) == (0, 0, 0)
        assert state.is_alive
        assert state.num_failed_steps == 0
    assert not llm.state().is_alive


@pytest.mark.parametrize("asked", [1, 2, 4, 0])
def test_a_request_chooses_how_far_to_draft(asked: int, answers: Any) -> None:
    with speculating(always_wrong(answers, VOCAB), 4) as llm:
        (output,) = llm.generate(ASKED, GREEDY, speculative={"num_speculative_tokens": asked})
    assert output.outputs[0].token_ids == expected(answers)[0]
    assert output.stats.drafted_per_position[asked:] == []
    assert len(output.stats.drafted_per_position) == asked


def test_a_request_may_decline(answers: Any) -> None:
    with speculating(oracle(answers), 4) as llm:
        (output,) = llm.generate(ASKED, GREEDY, speculative={"method": "none"})
    assert output.outputs[0].token_ids == expected(answers)[0]
    assert output.stats.num_draft_tokens == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"method": "medusa"}, "one of scripted, none"),
        ({"method": 3}, "one of scripted, none"),
        ({"num_speculative_tokens": 5}, "more than the 4"),
        ({"num_speculative_tokens": -1}, "at least 0"),
        ({"num_speculative_tokens": True}, "whole number"),
        ({"method": "none", "num_speculative_tokens": 2}, "nothing is drafted"),
        ({"tokens": 2}, "tokens is not supported"),
        ("ngram", "true, false or a mapping"),
        (1, "true, false or a mapping"),
    ],
)
def test_what_a_request_cannot_choose(asked: Any, said: str, answers: Any) -> None:
    with speculating(oracle(answers), 4) as llm, pytest.raises(OptionError, match=said):
        llm.generate(ASKED, GREEDY, speculative=asked)


async def test_prepared_in_one_thread_and_run_from_another(answers: Any) -> None:
    with speculating(oracle(answers), 4) as llm:
        group = await asyncio.to_thread(llm.prepare, ASKED, GREEDY)
        assert llm.state().num_running == 0
        stream = llm.submit(group)
        async for _ in stream:
            pass
    assert stream.output.outputs[0].token_ids == expected(answers)[0]
