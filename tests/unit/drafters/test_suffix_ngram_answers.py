"""Copied trees and remembered outputs change how many passes an answer takes, never the answer."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import tiny_model

from outpace import LLM, SamplingParams

TARGET = tiny_model(seed=1)
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [9] * 5, [40], list(range(2, 40)), [11, 12, 13, 11, 12]]
WAYS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "seeded": SamplingParams(temperature=0.9, seed=7, max_tokens=24),
}
TREE = {"method": "suffix", "shape": "tree", "suffix_decoding_min_token_prob": 0.01}


def answers(config: dict[str, Any] | None, way: str, rounds: int) -> list[tuple[Any, int]]:
    """For each round, in one engine, the ids answered and the passes they took."""
    found = []
    with LLM(TARGET, speculative_config=config, max_num_seqs=3) as llm:
        for _ in range(rounds):
            results = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], WAYS[way])
            ids = [result.outputs[0].token_ids for result in results]
            found.append((ids, sum(result.stats.num_steps for result in results)))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_those_of_plain_decoding(way: str) -> None:
    ((plain, plain_passes),) = answers(None, way, 1)
    for config in (TREE, {"method": "ngram", "num_continuations": 3, "num_speculative_tokens": 8}):
        ((ids, passes),) = answers(config, way, 1)
        assert ids == plain
        assert passes <= plain_passes
    (first, passes), (second, fewer) = answers({**TREE, "store_tokens": 1000}, way, 2)
    assert first == second == plain
    assert fewer < passes / 2
