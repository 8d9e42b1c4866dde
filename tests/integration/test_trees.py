"""Trees through the whole engine: what is said is what plain decoding says, in every field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cases import (
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
from scripted import always_wrong, in_a_tree, oracle, scripted

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.outputs import RequestOutput
from outpace.runner import Runner
from outpace.types import Draft, Sequence

GREEDY = SamplingParams(temperature=0, max_tokens=40, logprobs=2)
SEEDED = SamplingParams(
    temperature=0.9, seed=7, max_tokens=40, logprobs=2, top_p=0.9, presence_penalty=0.4
)


def fields(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (
            answer.token_ids,
            answer.text,
            answer.finish_reason,
            [
                {token: (entry.rank, round(entry.logprob, 9)) for token, entry in row.items()}
                for row in answer.logprobs or ()
            ],
        )
        for output in outputs
        for answer in output.outputs
    ]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    with plain_llm(TARGET) as llm:
        return {"greedy": fields(run(llm, GREEDY)), "seeded": fields(run(llm, SEEDED))}


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("num_probes", [0, 3])
@pytest.mark.parametrize("way", ["greedy", "seeded"])
def test_every_field_equals_plain_decoding(
    way: str, num_probes: int, batch: int, plain: Any, answers: Any
) -> None:
    propose = in_a_tree(oracle(answers), VOCAB, seed=batch, num_probes=num_probes)
    with speculating(propose, 9, max_num_seqs=batch) as llm:
        outputs = run(llm, GREEDY if way == "greedy" else SEEDED)
    assert fields(outputs) == plain[way]
    stats = [output.stats for output in outputs]
    assert sum(s.num_drafter_errors for s in stats) == 0
    if way == "greedy":
        assert sum(s.num_accepted_tokens for s in stats) > 20
    assert (sum(s.num_probe_tokens for s in stats) > 0) == bool(num_probes)


def test_prompts_fed_in_chunks_beside_trees(
    plain: Any, answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_in_chunks(7, monkeypatch)
    with speculating(in_a_tree(oracle(answers), VOCAB, seed=5), 12, max_num_seqs=3) as llm:
        assert fields(run(llm, GREEDY)) == plain["greedy"]


def test_the_right_path_is_found_wherever_it_lies(answers: Any) -> None:
    """Nine nodes, three of which are right: four tokens a step."""
    with speculating(in_a_tree(oracle(answers), VOCAB, seed=1, sure=True), 9) as llm:
        outputs = run(llm, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    assert ids_of(outputs) == expected(answers, 40)
    for output in outputs:
        assert output.stats.acceptance_length > 3.5
        assert sum(output.stats.accepted_per_position) == output.stats.num_accepted_tokens
        assert sum(output.stats.drafted_per_position) == output.stats.num_draft_tokens


def test_a_tree_of_wrong_tokens_gives_one_token_a_step(answers: Any) -> None:
    wrong = always_wrong(answers, VOCAB)

    def propose(seq: Sequence, budget: int) -> Draft:
        chain = wrong(seq, budget)
        return Draft(chain.token_ids, parents=(-1,) * len(chain))

    with speculating(propose, 4) as llm:
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        (output,) = run(llm, params, [PROMPT])
    assert output.stats.num_steps == 20
    assert output.stats.num_accepted_tokens == 0
    # Of several siblings the step reaches one place.
    assert output.stats.reached_per_position == [19]
    assert output.stats.drafted_per_position[0] == output.stats.num_draft_tokens


def test_probes_are_never_accepted(answers: Any) -> None:
    perfect = oracle(answers)

    def propose(seq: Sequence, budget: int) -> Draft:
        tokens = perfect(seq, budget).token_ids
        parents = tuple(range(-1, len(tokens) - 1))
        return Draft(tokens, parents=parents, num_probes=len(tokens))

    with speculating(propose, 4) as llm:
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        (output,) = run(llm, params, [PROMPT])
    assert output.outputs[0].token_ids == answers[tuple(PROMPT)][:20]
    assert (output.stats.num_steps, output.stats.num_draft_tokens) == (20, 0)
    assert output.stats.num_probe_tokens > 0


def test_where_no_trees_are_taken_the_first_path_is_left(
    answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "takes_trees", property(lambda runner: False))
    perfect = oracle(answers)

    def propose(seq: Sequence, budget: int) -> Draft:
        tokens = perfect(seq, budget - 2).token_ids
        parents = (*range(-1, len(tokens) - 1), -1, 0)
        return Draft((*tokens, 2, 3), parents=parents[: len(tokens) + 2])

    with speculating(propose, 5, max_num_seqs=1) as llm:
        fed = count_fed_tokens(monkeypatch)
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        (output,) = run(llm, params, [PROMPT])
    assert output.outputs[0].token_ids == answers[tuple(PROMPT)][:20]
    assert max(fed[1:]) == 4
    assert output.stats.num_accepted_tokens == output.stats.num_draft_tokens


def test_never_more_than_max_tokens_nor_past_the_context(answers: Any) -> None:
    propose = in_a_tree(oracle(answers), VOCAB, seed=2, sure=True)
    with speculating(propose, 24, max_model_len=50) as llm:
        for max_tokens in (1, 2, 3, 7, None):
            params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            outputs = run(llm, params, [ids for ids in PROMPTS if len(ids) < 48])
            for output in outputs:
                prompt = tuple(output.prompt_token_ids)
                limit = min(max_tokens or 50, 50 - len(prompt))
                assert output.outputs[0].token_ids == answers[prompt][:limit]
                assert output.outputs[0].finish_reason == "length"
                assert output.stats.num_drafter_errors == 0


@pytest.mark.parametrize("place", range(1, 8))
def test_a_stop_in_the_middle_of_an_accepted_path(place: int, answers: Any) -> None:
    stop = answers[tuple(PROMPT)][place]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop_token_ids=[stop])
    with plain_llm(TARGET) as llm:
        (wanted,) = run(llm, params, [PROMPT])
    with speculating(in_a_tree(oracle(answers), VOCAB, sure=True), 12) as llm:
        (output,) = run(llm, params, [PROMPT])
        assert fields([output]) == fields([wanted])
        # The row that the request left holds its text, not its last tree.
        longer = [*PROMPT, *output.outputs[0].token_ids]
        (after,) = run(llm, GREEDY, [longer])
    with plain_llm(TARGET) as llm:
        assert fields(run(llm, GREEDY, [longer])) == fields([after])


def test_a_tree_that_is_none_turns_the_drafter_off(answers: Any) -> None:
    def propose(seq: Sequence, budget: int) -> Draft:
        return Draft((3, 4), parents=(1, -1))

    with speculating(propose, 4) as llm:
        params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
        (output,) = run(llm, params, [PROMPT])
    assert output.stats.num_drafter_errors == 1
    assert output.outputs[0].token_ids == answers[tuple(PROMPT)][:10]


@pytest.mark.parametrize(
    ("parents", "num_probes"),
    [
        ((-1.0, -1.0, 0.0), 0),
        (np.array([-1, -1, 0.0]), 0),
        ((-1, -0.5, 0.5), 0),
        ((-1, "0", 0), 0),
        ((-1, -1, 0), 1.0),
        (None, 0.5),
    ],
)
def test_places_that_are_no_numbers_turn_the_drafter_off_for_one_request(
    parents: Any, num_probes: Any, answers: Any
) -> None:
    def propose(seq: Sequence, budget: int) -> Draft:
        if seq.num_prompt == len(PROMPT):
            return Draft((3, 4, 5), None, "odd", parents, num_probes)
        return oracle(answers)(seq, budget)

    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    with speculating(propose, 4) as llm:
        odd, other = run(llm, params, [PROMPT, PROMPTS[1]])
        (again,) = run(llm, params, [PROMPT])
    assert ids_of([odd, other, again]) == [
        answers[tuple(p)][:10] for p in (PROMPT, PROMPTS[1], PROMPT)
    ]
    assert (odd.stats.num_drafter_errors, other.stats.num_drafter_errors) == (1, 0)
    assert other.stats.acceptance_length > 2


def test_parents_may_be_a_list_or_an_array(answers: Any) -> None:
    perfect = oracle(answers)

    def propose(seq: Sequence, budget: int) -> Draft:
        tokens = perfect(seq, budget - 1).token_ids
        parents = np.array([-1, *range(-1, len(tokens) - 1)], np.int32)
        return Draft((2, *tokens), parents=np.where(parents > -1, parents + 1, -1))  # type: ignore[arg-type]

    with speculating(propose, 4) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        (output,) = run(llm, params, [PROMPT])
    assert output.outputs[0].token_ids == answers[tuple(PROMPT)][:12]
    assert output.stats.num_steps == 3


def test_drafts_do_not_crowd_out_prompts(answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five requests that ask for more draft tokens than a step takes, and a prompt that comes
    late: it is answered while they run."""
    feed_in_chunks(32, monkeypatch)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    late = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with speculating(always_wrong(answers, VOCAB), 100) as llm:
        streams = [llm.stream({"prompt_token_ids": ids}, params) for ids in PROMPTS[:4]]
        for stream in streams:
            next(stream)
        llm.generate({"prompt_token_ids": PROMPTS[4]}, late)
        assert not all(stream.output.finished for stream in streams)
        assert [s.drain().outputs[0].token_ids for s in streams] == expected(answers, 60)[:4]


def test_a_conversation_may_be_salted() -> None:
    messages = [{"role": "user", "content": "the same old question"}]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with plain_llm(TARGET) as llm:
        given = [
            {"messages": messages, "cache_salt": "a"},
            messages,
            {"messages": messages, "cache_salt": "b"},
            {"messages": messages},
            {"messages": messages, "cache_salt": "a"},
        ]
        outputs = [llm.chat(conversation, params)[0] for conversation in given]
        (streamed,) = [llm.stream(given[0], params).drain()]
        with pytest.raises(OptionError, match="put it beside"):
            llm.chat([{**messages[0], "cache_salt": "a"}], params)
        with pytest.raises(OptionError, match="messages must be a list"):
            llm.generate({"messages": "hello"}, params)
    assert len({tuple(o.outputs[0].token_ids) for o in [*outputs, streamed]}) == 1
    cached = [output.metrics.num_cached_tokens > 0 for output in outputs]
    assert cached == [False, False, False, True, True]


def test_salts_keep_cached_prompts_apart() -> None:
    config = {"method": scripted(lambda seq, budget: Draft())}
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    prompt = {"prompt_token_ids": list(range(2, 40))}
    with LLM(TARGET, speculative_config=config) as llm:
        cached = [
            llm.generate({**prompt, **salt}, params)[0].metrics.num_cached_tokens
            for salt in ({"cache_salt": "a"}, {"cache_salt": "b"}, {}, {"cache_salt": "a"})
        ]
    assert cached == [0, 0, 0, 37]
