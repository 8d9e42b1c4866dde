"""SmolLM2 through its GGUF file, through a Hugging Face directory, and through the adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles import llama_oracle
from transformers import AutoTokenizer

from outpace import LLM, SamplingParams
from outpace.models.hub.names import resolve
from outpace.models.open import open_checkpoint

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("unchecked_shapes_in_module")]

GGUF = "smollm2-135m"
QUESTIONS = ("Name the capital of Peru.", "Count from 1 to 10.", "Repeat: one two one two one two")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `save_pretrained` writes of the model in the GGUF file, and of its tokenizer."""
    folder = tmp_path_factory.mktemp("smollm2")
    file = resolve(GGUF)
    checkpoint = open_checkpoint(file)
    weights = {name: checkpoint.load(name) for name in checkpoint.names()}
    model = llama_oracle(checkpoint.config, weights, rope_theta=100_000.0)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder


def answers(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=24)
    results = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    return [result.outputs[0].token_ids for result in results]


def test_greedy_ids_are_the_same(directory: Path) -> None:
    """Plain from the file; the others by prompt lookup. The ids of the prompts are the file's: its
    pre-tokenizer is one that transformers does not write."""
    with LLM(GGUF, dtype="float32", max_model_len=256) as llm:
        messages = [[{"role": "user", "content": text}] for text in QUESTIONS]
        texts = [llm.tokenizer.apply_chat_template(one) for one in messages]
        prompts = [llm.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        wanted = answers(llm, prompts)
    assert all(wanted)
    for model_impl in ("outpace", "transformers"):
        with LLM(
            str(directory),
            dtype="float32",
            max_model_len=256,
            model_impl=model_impl,
            speculative_config={"method": "ngram"},
        ) as llm:
            assert answers(llm, prompts) == wanted, model_impl
