"""The default model on the native step: speculative text is the plain text, and so are its bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from native_models import StoredWeights, in_blocks, in_company, in_trees, usable_paths
from plain import plain_llm
from prompts import Prompt
from tiny import random_weights, tiny_config

from outpace import LLM, SamplingParams
from outpace.models.load import LoadedModel
from outpace.models.native.decoder import NativeDecoder, native_decoder

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("unchecked_shapes_in_module"),
    pytest.mark.skipif(not usable_paths(), reason="the native library is not built"),
]

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module", params=["auto", "bfloat16"])
def model(request: pytest.FixtureRequest, default_model: Callable[..., LoadedModel]) -> LoadedModel:
    return default_model(request.param, "native")


@pytest.fixture(scope="module")
def token_ids(default_model: Callable[..., LoadedModel], prompts: list[Prompt]) -> list[list[int]]:
    """Six prompts of different kinds; the last repeats itself, which drafters exploit."""
    texts = [prompt.text for prompt in prompts[:: max(1, len(prompts) // 5)][:5]]
    tokenizer = default_model("auto", "native").tokenizer
    return [tokenizer.encode(text)[:120] for text in [*texts, "one two three " * 12]]


def answers(
    llm: LLM, token_ids: list[list[int]], params: SamplingParams = GREEDY
) -> list[tuple[list[int], list[float]]]:
    """Ids and the log-probability of each, to the last bit."""
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in token_ids], params)
    found = []
    for output in outputs:
        (answer,) = output.outputs
        assert answer.logprobs is not None
        pairs = zip(answer.token_ids, answer.logprobs, strict=True)
        found.append((answer.token_ids, [report[token].logprob for token, report in pairs]))
    return found


def random_draft(target: LoadedModel) -> LoadedModel:
    """A small random model with the target's vocabulary and tokenizer."""
    config = tiny_config(vocab_size=target.config.vocab_size, num_layers=1, max_len=512)
    decoder = native_decoder(
        config, StoredWeights(random_weights(config)), num_logits=target.decoder.num_logits
    )
    return LoadedModel(decoder, target.tokenizer, "random draft", "random draft", "native")


def test_every_drafter_gives_the_bits_of_plain_decoding(
    model: LoadedModel, token_ids: list[list[int]]
) -> None:
    with plain_llm(model, max_num_seqs=1, max_model_len=256) as llm:
        expected = answers(llm, token_ids)
    configs: list[dict[str, Any]] = [
        {"method": "ngram", "num_speculative_tokens": 5},
        {"method": "draft_model", "model": model, "num_speculative_tokens": 3},
        {"method": "draft_model", "model": random_draft(model), "num_speculative_tokens": 3},
    ]
    for config in configs:
        for batch in (1, 8):
            with LLM(
                model, speculative_config=config, max_num_seqs=batch, max_model_len=256
            ) as llm:
                assert answers(llm, token_ids) == expected, (config, batch)


UNTRAINED: list[dict[str, Any]] = [
    {"method": "suffix", "shape": "chain"},
    {"method": "suffix", "shape": "tree", "suffix_decoding_min_token_prob": 0.02},
    {"method": "ngram", "num_continuations": 3, "num_speculative_tokens": 8},
    {"method": "recycling", "shape": "chain", "num_speculative_tokens": 4},
    {"method": "recycling", "shape": "tree", "num_speculative_tokens": 12},
    {"method": "lookahead", "shape": "chain"},
    {"method": "lookahead", "shape": "tree", "num_speculative_tokens": 12},
    {"method": "early_exit"},
    {"method": "early_exit", "num_branches": 2, "num_speculative_tokens": 3},
]


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("seed", [None, 3])
def test_chains_and_trees_give_the_bits_of_plain_decoding(
    default_model: Callable[..., LoadedModel],
    token_ids: list[list[int]],
    seed: int | None,
    batch: int,
) -> None:
    """Greedy and seeded, for every method that needs no second model."""
    model, params = default_model("auto", "native"), GREEDY
    if seed is not None:
        params = replace(GREEDY, temperature=0.8, seed=seed, top_p=0.9)
    with plain_llm(model, max_num_seqs=1, max_model_len=256) as llm:
        expected = answers(llm, token_ids, params)
    for config in UNTRAINED:
        with LLM(model, speculative_config=config, max_num_seqs=batch, max_model_len=256) as llm:
            assert answers(llm, token_ids, params) == expected, config


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("drafter", ["ngram", "itself", "random"])
def test_every_prompt_is_answered_as_by_plain_decoding(
    default_model: Callable[..., LoadedModel],
    prompts: list[Prompt],
    plain_answers: list[list[int]],
    drafter: str,
    batch: int,
) -> None:
    model = default_model("auto", "native")
    config: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 5}
    if drafter != "ngram":
        draft = model if drafter == "itself" else random_draft(model)
        config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    found = chat_ids(LLM(model, speculative_config=config, max_num_seqs=batch), prompts)
    pairs = zip(found, plain_answers, strict=True)
    differing = [i for i, (answer, plain) in enumerate(pairs) if answer != plain]
    print(f"{drafter}, batch {batch}: {len(differing)} of {len(found)} answers differ from plain")
    assert differing == []


@pytest.fixture(scope="module")
def plain_answers(
    default_model: Callable[..., LoadedModel], prompts: list[Prompt]
) -> list[list[int]]:
    return chat_ids(plain_llm(default_model("auto", "native"), max_num_seqs=1), prompts)


def chat_ids(llm: LLM, prompts: list[Prompt]) -> list[list[int]]:
    """Greedy answers of up to 128 tokens; closes the LLM."""
    params = SamplingParams(temperature=0, max_tokens=128)
    with llm:
        outputs = llm.chat([[{"role": "user", "content": p.text}] for p in prompts], params)
    return [output.outputs[0].token_ids for output in outputs]


def test_logits_do_not_depend_on_how_a_text_is_fed(
    model: LoadedModel, token_ids: list[list[int]]
) -> None:
    decoder = model.decoder
    assert isinstance(decoder, NativeDecoder)
    text = [token for ids in token_ids[:2] for token in ids][:90]
    single = in_blocks(decoder, text, [1])
    for sizes in ([2], [5], [8], [13], [90], [1, 40, 3]):
        assert torch.equal(in_blocks(decoder, text, sizes), single), sizes
    assert torch.equal(in_company(decoder, text, token_ids[2:5]), single)
    assert torch.equal(in_trees(decoder, text, seed=1), single)


def test_it_agrees_with_the_decoder_in_torch(
    default_model: Callable[..., LoadedModel], token_ids: list[list[int]]
) -> None:
    """In float32, on the same (dequantised) weights; logits reach 20 to 30."""
    own, reference = default_model("float32", "native"), default_model("float32", "torch")
    for ids in token_ids[:3]:
        found, expected = (in_blocks(m.decoder, ids, [len(ids)]) for m in (own, reference))
        assert (found - expected).abs().max() < 2e-3
