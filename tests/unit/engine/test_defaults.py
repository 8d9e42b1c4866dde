"""Sampling parameters advised by a model's makers."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.engine.defaults import check_generation_config, default_sampling_params
from outpace.errors import ModelError, OptionError
from outpace.params import SamplingParams


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ({}, {}),
        ({"bos_token_id": 1, "eos_token_id": [2, 3], "transformers_version": "4.51.0"}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
        ),
        (
            {"typical_p": 0.9, "repetition_penalty": 1.1},
            {"typical_p": 0.9, "repetition_penalty": 1.1},
        ),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0, "top_p": 0.9}),
        ({"do_sample": None, "temperature": None, "top_k": None}, {}),
        ({"max_new_tokens": 2048, "stop_strings": ["###"]}, {"max_tokens": 2048, "stop": "###"}),
        (
            {
                "general.sampling.temp": 0.5,
                "general.sampling.top_k": 40,
                "general.sampling.top_p": 0.8,
                "general.sampling.min_p": 0.05,
                "general.sampling.penalty_repeat": 1.2,
                "general.sampling.penalty_last_n": -1,
            },
            {
                "temperature": 0.5,
                "top_k": 40,
                "top_p": 0.8,
                "min_p": 0.05,
                "repetition_penalty": 1.2,
            },
        ),
    ],
)
def test_what_is_stored_becomes_parameters(
    stored: dict[str, Any], wanted: dict[str, Any], caplog: Any
) -> None:
    assert default_sampling_params(stored, "m") == SamplingParams(**wanted)
    assert caplog.text == ""


NEUTRAL = {
    "no_repeat_ngram_size": 0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "penalty_alpha": None,
    "num_beams": 1,
    "guidance_scale": 1.0,
    "suppress_tokens": [],
    "forced_eos_token_id": None,
    "general.sampling.xtc_probability": 0.0,
    "general.sampling.mirostat": 0,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_repeat_ngram_size", 3),
        ("epsilon_cutoff", 3e-4),
        ("eta_cutoff", 2e-3),
        ("penalty_alpha", 0.6),
        ("num_beams", 4),
        ("guidance_scale", 1.5),
        ("suppress_tokens", [1, 2]),
        ("forced_eos_token_id", 2),
        ("general.sampling.xtc_probability", 0.5),
        ("general.sampling.mirostat", 2),
        ("general.sampling.penalty_last_n", 64),
    ],
)
def test_what_is_not_computed_is_named(name: str, value: object, caplog: Any) -> None:
    stored = NEUTRAL | {"temperature": 0.5, name: value}
    assert default_sampling_params(stored, "the model") == SamplingParams(temperature=0.5)
    (record,) = caplog.records
    assert "the model" in record.getMessage()
    assert f"{name}={value!r}" in record.getMessage()
    others = set(NEUTRAL) - {name}
    assert not any(other in record.getMessage() for other in others)


@pytest.mark.parametrize(
    "stored", [{"temperature": "hot"}, {"top_p": 1.5}, {"top_k": 2.5}, {"stop_strings": [""]}]
)
def test_values_that_cannot_be(stored: dict[str, Any]) -> None:
    name = next(iter(stored)).removesuffix("_strings")
    with pytest.raises(ModelError, match=f"the model.*{name}.*generation_config='none'"):
        default_sampling_params(stored, "the model")


@pytest.mark.parametrize("option", ["vllm", None, 3, ""])
def test_the_option(option: object) -> None:
    with pytest.raises(OptionError, match="generation_config must be 'auto' or 'none'"):
        check_generation_config(option)
