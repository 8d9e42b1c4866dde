"""A replay says the recorded text and counts what a real run counts; what is wrong is noticed."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from scripted import right_for, scripted
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.errors import OutpaceError
from outpace.measure.advise.candidates import Candidate, Family, candidates_of, families_of
from outpace.measure.advise.replay import Recorded, Replay
from outpace.measure.advise.steps import Step, summarise_steps
from outpace.measure.methods import parse_methods
from outpace.outputs import SpeculationStats
from outpace.types import Draft, Sequence

TARGET = tiny_model(seed=1, max_len=128, scale=0.6)
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [60, 61, 62] * 5, [17, 4, 17, 4, 17], [33, 2, 8]]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
SEEDED = SamplingParams(temperature=0.8, max_tokens=24, seed=3)
SAMPLED = SamplingParams(temperature=0.8, max_tokens=48, ignore_eos=True)


@pytest.fixture(autouse=True)
def _unchecked(unchecked_shapes: None) -> None:
    """Whole engines run here."""


def record(params: SamplingParams, prompts: list[list[int]] = PROMPTS) -> list[Recorded]:
    with LLM(TARGET, speculative_config={"method": "none"}, max_num_seqs=1) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    return [
        Recorded(f"prompt {i}", "tiny", tuple(o.prompt_token_ids), tuple(o.outputs[0].token_ids))
        for i, o in enumerate(outputs)
    ]


def replayed(
    family: Family, recorded: list[Recorded], params: SamplingParams, **more: Any
) -> Replay:
    replay = Replay(TARGET, family, max_model_len=128, max_num_seqs=2, **more)
    try:
        replay.score(recorded, params)
    finally:
        replay.close()
    return replay


def counted(steps: list[Step]) -> tuple[Any, ...]:
    """As `SpeculationStats` counts, first step included."""
    all_of_it = summarise_steps([[steps[0], *steps]])  # the first entry is left out there
    return (
        len(steps),
        sum(step.num_drafted for step in steps),
        sum(step.num_accepted for step in steps),
        all_of_it.reached,
    )


def counted_for_real(stats: SpeculationStats) -> tuple[Any, ...]:
    return (
        stats.num_steps,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
        stats.reached_per_position,
    )


METHODS = (
    "suffix:1-4,ngram:1-3,suffix:6:tree,recycling:4,recycling:5:chain,lookahead:6,early_exit:1-2"
)
FAMILIES = {
    family.longest.name: family for family in families_of(candidates_of(parse_methods(METHODS)))
}


BY_EACH = [
    pytest.param(name, params, id=f"{name} {way}", marks=() if way == usual else pytest.mark.slow)
    for name, usual in zip(FAMILIES, cycle(["greedy", "seeded"]), strict=False)
    for way, params in (("greedy", GREEDY), ("seeded", SEEDED))
]
"""Every method; in turn greedy and seeded, and `slow` the other way."""


@pytest.mark.parametrize(("name", "params"), BY_EACH)
def test_counts_are_those_of_a_real_run(name: str, params: SamplingParams) -> None:
    recorded = record(params)
    replay = replayed(FAMILIES[name], recorded, params)
    for score in replay.scores:
        assert score.num_disagreements == 0
        with LLM(TARGET, speculative_config=score.candidate.config, max_num_seqs=1) as llm:
            requests = [
                {"prompt_token_ids": list(each.prompt), "cache_salt": each.label}
                for each in recorded
            ]
            outputs = llm.generate(requests, params)
            for each, steps, output in zip(recorded, score.answers, outputs, strict=True):
                assert tuple(output.outputs[0].token_ids) == each.answer
                assert counted(steps) == counted_for_real(output.stats), score.candidate.name


def scripted_family(propose: Any, k: int, *, shares_replay: bool) -> Family:
    config = {"method": scripted(propose), "num_speculative_tokens": k}
    candidates = tuple(
        Candidate(f"scripted K={n}", config | {"num_speculative_tokens": n}, "scripted", n, False)
        for n in (range(1, k + 1) if shares_replay else [k])
    )
    return Family(candidates, shares_replay)


@pytest.mark.parametrize("shares_replay", [True, False])
def test_a_drafter_with_known_acceptance_is_scored_exactly(shares_replay: bool) -> None:
    params = SamplingParams(temperature=0, max_tokens=31, ignore_eos=True)
    recorded = record(params)
    answers = {each.prompt: list(each.answer) for each in recorded}
    two_right = right_for(answers, 96, lambda seq: 2)
    replay = replayed(scripted_family(two_right, 4, shares_replay=shares_replay), recorded, params)
    longest = replay.scores[-1]
    # 31 tokens, three at a time: ten steps and one more token.
    assert [len(steps) for steps in longest.answers] == [11] * len(PROMPTS)
    found = summarise_steps(longest.answers)
    assert found.conditional[:3] == [1.0, 1.0, 0.0]
    if shares_replay:
        assert [len(steps) for steps in replay.scores[0].answers] == [16] * len(PROMPTS)


def drawing(q: np.ndarray, seed: int) -> Any:
    """Draws from q after the tokens are known, differently at every call."""
    rng = np.random.default_rng(seed)

    def propose(seq: Sequence, budget: int) -> Draft:
        if not seq.num_output:
            return Draft()
        tokens = tuple(int(token) for token in rng.choice(q.size, size=budget, p=q))
        return Draft(tokens, (q,) * budget, "drawn")

    return propose


@pytest.mark.parametrize("shares_replay", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_draws_are_put_to_the_engines_own_rule(shares_replay: bool) -> None:
    """The acceptance of drafts with a q agrees with that of unseeded runs of the same drafter."""
    q = np.full(96, 1 / 96)
    prompts = PROMPTS * 5
    family = scripted_family(drawing(q, 1), 3, shares_replay=shares_replay)
    replay = replayed(family, record(SAMPLED, prompts), SAMPLED)
    expected = summarise_steps(replay.scores[-1].answers).expected
    config = {"method": scripted(drawing(q, 2)), "num_speculative_tokens": 3}
    with LLM(TARGET, speculative_config=config, max_num_seqs=4) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], SAMPLED)
    real = SpeculationStats()
    for output in outputs:
        real.add(output.stats)
    # A draft that was never accepted gives 1; these agree within four standard errors or so.
    assert real.acceptance_length > 1.1
    assert expected == pytest.approx(real.acceptance_length, rel=0.15)


def test_text_that_is_not_the_targets_is_noticed() -> None:
    recorded = record(GREEDY)
    wrong = list(recorded[0].answer)
    wrong[5] = (wrong[5] + 1) % 90 + 2
    planted = [
        Recorded("planted", "tiny", recorded[0].prompt, tuple(wrong)),
        *recorded[1:],
    ]
    replay = replayed(FAMILIES["suffix K=4"], planted, GREEDY)
    assert replay.scores[0].num_disagreements > 0


def test_a_replay_that_ends_elsewhere_is_an_error() -> None:
    recorded = record(GREEDY)
    short = Recorded("short", "tiny", recorded[0].prompt, recorded[0].answer[:15])
    params = SamplingParams(temperature=0, max_tokens=10)
    with pytest.raises(OutpaceError, match="another text"):
        replayed(FAMILIES["suffix K=4"], [short], params)


def test_a_drafter_that_fails_is_an_error() -> None:
    def broken(seq: Sequence, budget: int) -> Draft:
        raise ValueError("out of ideas")

    with pytest.raises(OutpaceError, match="failed"):
        replayed(scripted_family(broken, 2, shares_replay=True), record(GREEDY), GREEDY)
