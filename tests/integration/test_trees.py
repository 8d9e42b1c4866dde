"""Trees through the whole engine: what is said is what plain decoding says, in every field."""

from __future__ import annotations

from typing import Any

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
from scripted import always_wrong, in_a_tree, oracle, scripted

from outpace import LLM, SamplingParams
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
    with LLM(TARGET) as llm:
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
    with LLM(TARGET) as llm:
        (wanted,) = run(llm, params, [PROMPT])
    with speculating(in_a_tree(oracle(answers), VOCAB, sure=True), 12) as llm:
        (output,) = run(llm, params, [PROMPT])
        assert fields([output]) == fields([wanted])
        # The row that the request left holds its text, not its last tree.
        longer = [*PROMPT, *output.outputs[0].token_ids]
        (after,) = run(llm, GREEDY, [longer])
    with LLM(TARGET) as llm:
        assert fields(run(llm, GREEDY, [longer])) == fields([after])


def test_a_tree_that_is_none_turns_the_drafter_off(answers: Any) -> None:
    def propose(seq: Sequence, budget: int) -> Draft:
        return Draft((3, 4), parents=(1, -1))

    with speculating(propose, 4) as llm:
        params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
        (output,) = run(llm, params, [PROMPT])
    assert output.stats.num_drafter_errors == 1
    assert output.outputs[0].token_ids == answers[tuple(PROMPT)][:10]


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
