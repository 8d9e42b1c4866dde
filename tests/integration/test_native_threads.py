"""Between native steps torch starts no team of threads: its members would take the step's cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from native_models import StoredWeights, usable_paths
from tiny import random_weights, tiny_config, tiny_tokenizer

from outpace import LLM, SamplingParams
from outpace.models.decoder import Decoder
from outpace.models.load import LoadedModel
from outpace.models.native.decoder import native_decoder

TASKS = Path("/proc/self/task")

pytestmark = [
    pytest.mark.skipif(not usable_paths(), reason="the native library is not built"),
    pytest.mark.skipif(not TASKS.exists(), reason="threads are counted through /proc"),
    pytest.mark.usefixtures("unchecked_shapes"),
]

PARAMS = [
    SamplingParams(temperature=0, max_tokens=4),
    SamplingParams(temperature=0.8, top_p=0.9, logprobs=3, prompt_logprobs=2, max_tokens=4),
    SamplingParams(temperature=0.8, seed=1, min_p=0.05, n=2, max_tokens=4),
]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def model(native: bool) -> LoadedModel:
    """A vocabulary so large that torch would share out any work on a row of logits."""
    config = tiny_config(vocab_size=70_000, tie_word_embeddings=True)
    weights = StoredWeights(random_weights(config))
    decoder: Any
    if native:
        decoder = native_decoder(config, weights, threads=2)
    else:
        decoder = Decoder(config, weights.load, dtype=torch.float32)
    return LoadedModel(decoder, tiny_tokenizer(), "wide", "wide", "native" if native else "torch")


def num_new_threads(target: LoadedModel, config: dict[str, Any] | None) -> int:
    """How many threads requests have started that the engine had not."""
    with LLM(target, speculative_config=config, max_num_seqs=3) as llm:
        before = set(os.listdir(TASKS))
        for params in PARAMS:
            llm.generate([{"prompt_token_ids": [5, 6, 7, 8]}, {"prompt_token_ids": [9]}], params)
        return len(set(os.listdir(TASKS)) - before)


def test_no_thread_is_started() -> None:
    target = model(native=True)
    for config in (None, {"method": "ngram"}, {"method": "draft_model", "model": target}):
        assert num_new_threads(target, config) == 0, config


def test_the_check_sees_a_parallel_operation() -> None:
    """Negative control: the decoder in torch does start a team."""
    assert num_new_threads(model(native=False), None) >= 1
