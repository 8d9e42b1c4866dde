"""EAGLE drafters in the whole engine: a random head drafts, what is said is the target's own."""

from __future__ import annotations

from typing import Any

import pytest
from fake_head import FakeHead, LyingHead, head_config
from laws import SMALL, SMALL_VOCAB, chi_square_p, pair_counts, pair_law
from plain import plain_llm
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.drafters import drafter_class, make_options
from outpace.drafters.parts.eagle_rows import MOST_WAITING
from outpace.errors import OptionError
from outpace.models.attention import padded_capacity

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

VOCAB = 16
TARGET = tiny_model(vocab_size=VOCAB, seed=6, max_len=256)
PROMPTS = [[5, 6, 7, 8, 9], [4, 11], list(range(2, 16)) * 3, [3], [6, 6, 7] * 5]


def engine_head(method: str, vocab_size: int, kind: type[FakeHead] = FakeHead) -> FakeHead:
    layers = {"eagle": (2,), "eagle3": (0, 1, 2)}[method]
    config = head_config(
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size - 2,
        feature_layers=layers,
        target_hidden_size=32,
        algorithm=method,
    )
    return kind(config, seed=3, sharpness=2.0)


def speculation(method: str, shape: str, k: int, head: FakeHead) -> dict[str, Any]:
    return {"method": method, "model": head, "shape": shape, "num_speculative_tokens": k}


WAYS = {
    "greedy": SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, n=2),
    "seeded": SamplingParams(temperature=0.9, seed=3, max_tokens=40, top_p=0.95, n=3),
}
CELLS = [
    pytest.param(method, shape, way, marks=[pytest.mark.slow] if (i + j + k) % 2 else [])
    for i, method in enumerate(("eagle", "eagle3"))
    for j, shape in enumerate(("chain", "tree"))
    for k, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("method", "shape", "way"), CELLS)
def test_answers_are_those_of_plain_decoding(method: str, shape: str, way: str) -> None:
    params = WAYS[way]
    requests = [{"prompt_token_ids": ids} for ids in PROMPTS]
    with plain_llm(TARGET, max_num_seqs=3) as llm:
        plain = llm.generate(requests, params)
    head = engine_head(method, VOCAB)
    config = speculation(method, shape, 5, head)
    with LLM(TARGET, speculative_config=config, max_num_seqs=3) as llm:
        for _ in range(2):  # the second time from prefixes that are cached
            outputs = llm.generate(requests, params)
            for output, wanted in zip(outputs, plain, strict=True):
                answers = [(o.token_ids, o.finish_reason) for o in output.outputs]
                assert answers == [(o.token_ids, o.finish_reason) for o in wanted.outputs]
                assert output.stats.num_drafter_errors == 0
            assert sum(output.stats.num_accepted_tokens for output in outputs) > 0
            assert all(output.stats.num_draft_tokens for output in outputs)


NUM_REQUESTS = 1000
LAWS = {
    "T1": SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True),
    "T0.7-top_k": SamplingParams(temperature=0.7, top_k=5, max_tokens=3, ignore_eos=True),
}


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ("chain", "T1"),
        ("tree", "T0.7-top_k"),
        pytest.param("chain", "T0.7-top_k", marks=pytest.mark.slow),
        pytest.param("tree", "T1", marks=pytest.mark.slow),
    ],
)
def test_sampled_law_is_the_targets(shape: str, name: str) -> None:
    config = speculation("eagle3", shape, 2, engine_head("eagle3", SMALL_VOCAB))
    with LLM(SMALL, speculative_config=config, max_num_seqs=64) as llm:
        counts = pair_counts(llm, LAWS[name], NUM_REQUESTS)
    assert chi_square_p(counts, pair_law(LAWS[name])) > 1e-5


def test_the_law_test_has_teeth() -> None:
    """A head that draws from one distribution and claims another is found out."""
    config = speculation("eagle3", "chain", 2, engine_head("eagle3", SMALL_VOCAB, LyingHead))
    with LLM(SMALL, speculative_config=config, max_num_seqs=64) as llm:
        counts = pair_counts(llm, LAWS["T1"], NUM_REQUESTS)
    assert chi_square_p(counts, pair_law(LAWS["T1"])) < 1e-9


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_memory_is_planned_for_the_head_too(shape: str) -> None:
    head, num_tokens = engine_head("eagle3", VOCAB), TARGET.max_len
    config = speculation("eagle3", shape, 5, head)
    options = make_options("eagle3", {key: config[key] for key in config if key != "method"})
    own = drafter_class("eagle3").row_bytes(options, TARGET, num_tokens)
    capacity = padded_capacity(num_tokens + (5 if shape == "tree" else 0))
    pending = 4 * min(num_tokens, MOST_WAITING) * head.config.feature_size
    assert own == head.kv_bytes(num_rows=1, capacity=capacity) + pending
    needed = own + TARGET.kv_bytes(num_rows=1, num_tokens=num_tokens)
    with LLM(TARGET, speculative_config=config, kv_cache_bytes=needed) as llm:
        llm.generate([{"prompt_token_ids": PROMPTS[0]}], WAYS["greedy"])
    with pytest.raises(OptionError, match="GB for the drafter"):
        LLM(TARGET, speculative_config=config, kv_cache_bytes=needed - 1)
