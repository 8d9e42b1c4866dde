"""What the Python interface takes, and what it refuses with one clear message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_cases import GREEDY, PROMPTS, TARGET, VOCAB, run
from plain import plain_llm
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.engine.memory import plan_rows
from outpace.errors import ContextLengthError, ModelError, OptionError


@pytest.mark.parametrize("given", ["hello", ["hi"], {"role": "user", "content": "x"}, 5, None])
def test_chat_takes_conversations_only(given: Any) -> None:
    with plain_llm(TARGET) as llm, pytest.raises(OptionError, match="a conversation is"):
        llm.chat(given, GREEDY)


@pytest.mark.parametrize("given", [5, None, 2.5])
def test_generate_takes_prompts_only(given: Any) -> None:
    with plain_llm(TARGET) as llm:
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
        {"n": 0},
        {"n": 2.0},
        {"presence_penalty": 2.5},
        {"min_tokens": 17},
        {"best_of": 2},
    ],
)
def test_sampling_parameters_are_applied_or_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(values))):
        SamplingParams(**values)
    with pytest.raises(OptionError):
        SamplingParams.from_dict(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, f"logit_bias holds token id {VOCAB}.*vocabulary of {VOCAB}"),
        ({"allowed_token_ids": [1, 500]}, "allowed_token_ids holds token id 500"),
        ({"stop_token_ids": [VOCAB]}, f"stop_token_ids holds token id {VOCAB}"),
        ({"logprobs": VOCAB + 1}, "logprobs must be at most"),
        ({"bad_words": ["a", "¿"]}, "bad_words holds '¿'"),
        ({"allowed_token_ids": [0], "min_tokens": 1}, "no token could be generated"),
    ],
)
def test_parameters_that_this_model_cannot_honour(values: dict[str, Any], message: str) -> None:
    with plain_llm(TARGET) as llm, pytest.raises(OptionError, match=message):
        llm.generate("abc", SamplingParams(**values))


def test_without_parameters_the_models_own_are_used(caplog: Any) -> None:
    stored = {"do_sample": True, "temperature": 0.5, "top_k": 7, "no_repeat_ngram_size": 2}
    advised = replace(TARGET, generation_config=stored)
    with plain_llm(advised) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=7)
        assert llm.get_default_sampling_params().max_tokens == 16
    assert caplog.text.count("no_repeat_ngram_size=2") == 1
    greedy = replace(TARGET, generation_config={"do_sample": False, "max_new_tokens": 5})
    with plain_llm(greedy) as llm:
        wanted = llm.generate("abc", SamplingParams(temperature=0, max_tokens=5))[0].outputs
        assert llm.generate("abc")[0].outputs == wanted
        assert llm.chat([{"role": "user", "content": "x"}])[0].outputs[0].token_ids
        assert llm.stream("abc").drain().outputs == wanted
    with plain_llm(advised, generation_config="none") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
    with plain_llm(replace(TARGET, generation_config={"top_p": 7})) as llm:
        with pytest.raises(ModelError, match=r"top_p must be.*generation_config='none'"):
            llm.generate("abc")
        assert llm.generate("abc", GREEDY)


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
    with plain_llm(TARGET) as llm:
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
        ({"generation_config": "vllm"}, "'auto' or 'none'"),
        ({"model_impl": "transformers"}, "runs on the torch decoder"),
        ({"gpu_memory_utilization": 0.9}, "gpu_memory_utilization is not supported"),
        ({"max_model_len": 257}, "256 positions"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"kv_cache_bytes": 10}, "GB of cache"),
        ({"speculative_config": {"method": "magic"}}, "known methods"),
        ({"speculative_config": {"method": "ngram", "beam": 3}}, "beam is not supported"),
        ({"speculative_config": {"beam": 3}}, "'auto' option beam is not supported"),
        ({"speculative_config": {"method": "draft_model"}}, "needs a draft model"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": -1}}, "at least 0"),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_min": 5}}, "must not exceed"),
        ({"speculative_config": "ngram"}, "must be a mapping"),
        ({"num_speculative_tokens": -1}, "at least 0"),
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


def test_target_and_draft_share_the_memory_for_caches() -> None:
    """Fewer rows than asked for, where both caches of that many would not fit."""
    row = TARGET.kv_bytes(num_rows=1, num_tokens=256)
    models = [TARGET, TARGET]
    num_rows = plan_rows(models, max_num_seqs=64, max_model_len=256, kv_cache_bytes=7 * row)
    assert num_rows == 3
    draft = {"method": "draft_model", "model": TARGET, "num_speculative_tokens": 2}
    with LLM(TARGET, speculative_config=draft, max_num_seqs=64, kv_cache_bytes=2 * row) as llm:
        assert len(run(llm)) == len(PROMPTS)
    with pytest.raises(OptionError, match=r"one sequence of 256 tokens needs .* for tiny"):
        LLM(TARGET, speculative_config=draft, kv_cache_bytes=2 * row - 1)
