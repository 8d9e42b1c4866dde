"""SmolLM2 through its GGUF file, through a Hugging Face directory, and through the adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from plain import plain_llm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from outpace import LLM, SamplingParams
from outpace.models.load import LoadedModel

pytestmark = pytest.mark.model

QUESTIONS = ("Name the capital of Peru.", "Count from 1 to 10.", "Repeat: one two one two one two")


@pytest.fixture
def directory(
    default_oracle: LlamaForCausalLM,
    default_tokenizer_of_transformers: PreTrainedTokenizerFast,
    tmp_path: Path,
) -> Path:
    """What `save_pretrained` writes of the model in the GGUF file, and of its tokenizer."""
    default_oracle.save_pretrained(tmp_path)
    default_tokenizer_of_transformers.save_pretrained(tmp_path)
    return tmp_path


def answers(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=24)
    results = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    return [result.outputs[0].token_ids for result in results]


def test_greedy_ids_are_the_same(
    directory: Path, default_model: Callable[..., LoadedModel]
) -> None:
    """Plain from the file; the others by prompt lookup."""
    with plain_llm(default_model("float32"), max_model_len=256) as llm:
        messages = [[{"role": "user", "content": text}] for text in QUESTIONS]
        texts = [llm.tokenizer.apply_chat_template(one) for one in messages]
        prompts = [llm.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        wanted = answers(llm, prompts)
    assert all(wanted)
    for model_impl in ("auto", "torch", "transformers"):
        with LLM(
            str(directory),
            dtype="float32",
            max_model_len=256,
            model_impl=model_impl,
            speculative_config={"method": "ngram"},
        ) as llm:
            assert answers(llm, prompts) == wanted, model_impl
