"""Fixtures of the engine's tests, which leave out the checks of shapes: units have them, and so has
one test of contracts/test_drafters.py that runs the whole engine."""

from __future__ import annotations

import pytest
from engine_cases import TARGET, run
from plain import plain_llm

from outpace import SamplingParams


@pytest.fixture(scope="module", autouse=True)
def _unchecked_shapes(unchecked_shapes_in_module: None) -> None:
    """For all of this folder, whose speed does not allow the checks."""


@pytest.fixture(scope="session")
def answers() -> dict[tuple[int, ...], list[int]]:
    """Plain greedy continuations, by prompt."""
    with plain_llm(TARGET, max_num_seqs=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        return {tuple(o.prompt_token_ids): o.outputs[0].token_ids for o in run(llm, params)}
