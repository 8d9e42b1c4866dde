"""What the Python interface takes, and what it refuses with one clear message."""

from __future__ import annotations

from typing import Any

import pytest
from engine_cases import GREEDY, TARGET, VOCAB
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.errors import ContextLengthError, OptionError


@pytest.mark.parametrize("given", ["hello", ["hi"], {"role": "user", "content": "x"}, 5, None])
def test_chat_takes_conversations_only(given: Any) -> None:
    with LLM(TARGET) as llm, pytest.raises(OptionError, match="a conversation is"):
        llm.chat(given, GREEDY)


@pytest.mark.parametrize("given", [5, None, 2.5])
def test_generate_takes_prompts_only(given: Any) -> None:
    with LLM(TARGET) as llm:
        with pytest.raises(OptionError, match="prompts are"):
            llm.generate(given)
        with pytest.raises(OptionError, match="sampling_params must be"):
            llm.generate("abc", given or 5)


@pytest.mark.parametrize(
    "values",
    [
        {"stop": 5},
        {"stop_token_ids": 5},
        {"temperature": 10**400},
        {"top_p": 10**400},
        {"n": 2},
        {"presence_penalty": 0.5},
    ],
)
def test_sampling_parameters_are_applied_or_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(values))):
        SamplingParams(**values)
    with pytest.raises(OptionError):
        SamplingParams.from_dict(values)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ({"prompt_token_ids": []}, None, None),
        ({"prompt_token_ids": [VOCAB]}, OptionError, "outside the model.s vocabulary"),
        ({"prompt_token_ids": [-1]}, OptionError, "outside the model.s vocabulary"),
        ({"prompt_token_ids": ["a"]}, OptionError, "whole numbers"),
        ({"prompt_token_ids": [True]}, OptionError, "whole numbers"),
        ({"prompt_token_ids": [2] * 256}, ContextLengthError, "256 tokens"),
        ({"tokens": [1]}, OptionError, "prompt_token_ids"),
        (3.5, OptionError, "a prompt is"),
    ],
)
def test_bad_prompts(prompt: Any, error: type[Exception] | None, message: str | None) -> None:
    with LLM(TARGET) as llm:
        if error is None:
            # An empty prompt starts from the model's begin token.
            assert llm.generate([prompt], GREEDY)[0].prompt_token_ids == [1]
        else:
            with pytest.raises(error, match=message):
                llm.generate([prompt], GREEDY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 2}, "one device"),
        ({"trust_remote_code": True}, "never executed"),
        ({"gpu_memory_utilization": 0.9}, "gpu_memory_utilization is not supported"),
        ({"max_model_len": 257}, "256 positions"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"kv_cache_bytes": 10}, "GB of cache"),
        ({"speculative_config": {"method": "magic"}}, "known methods"),
        ({"speculative_config": {"method": "ngram", "beam": 3}}, "beam is not supported"),
        ({"speculative_config": {"num_speculative_tokens": 3}}, "without a `method`"),
        ({"speculative_config": {"method": "draft_model"}}, "needs a draft model"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": -1}}, "at least 0"),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_min": 5}}, "must not exceed"),
        ({"speculative_config": "ngram"}, "must be a mapping"),
        ({"num_speculative_tokens": 3}, "without a `method`"),
        ({"speculative_model": "no-such-model"}, "no-such-model"),
    ],
)
def test_options_are_honoured_or_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as info:
        LLM(TARGET, **options)
    assert type(info.value).__module__ == "outpace.errors"


def test_mismatched_vocabularies_are_refused_by_token() -> None:
    draft = tiny_model(seed=2, vocab_size=90)
    with pytest.raises(OptionError, match="90"):
        LLM(TARGET, speculative_model=draft, num_speculative_tokens=3)


def test_the_shorthand_of_articles() -> None:
    with LLM(
        model=TARGET, speculative_model="[ngram]", num_speculative_tokens=5, tensor_parallel_size=1
    ) as llm:
        outputs = llm.generate(["the cat sat on the mat"], SamplingParams(temperature=0))
        assert llm.method == "ngram"
        for output in outputs:
            assert isinstance(output.outputs[0].text, str)
