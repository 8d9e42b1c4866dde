"""What a model's files advise for sampling reaches the requests that bring no parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_files import write_gguf, write_hf
from plain import plain_llm

from outpace import SamplingParams
from outpace.errors import ModelError
from outpace.models.open import open_checkpoint


def test_of_a_hugging_face_directory(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "model")
    assert open_checkpoint(path).generation_config() == {}
    stored = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": 0}
    (path / "generation_config.json").write_text(json.dumps(stored))
    assert open_checkpoint(path).generation_config() == stored
    with plain_llm(path) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.6, top_p=0.95)
    with plain_llm(path, generation_config="none") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_a_damaged_file(text: str, tmp_path: Path) -> None:
    path = write_hf(tmp_path / "model")
    (path / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        plain_llm(path)


def test_of_a_gguf_file(tmp_path: Path) -> None:
    advice = {"temp": 0.5, "top_k": 30, "min_p": 0.0625, "penalty_repeat": 1.25}
    metadata = {f"general.sampling.{name}": value for name, value in advice.items()}
    path = write_gguf(tmp_path / "model.gguf", metadata=metadata)
    assert open_checkpoint(path).generation_config() == metadata
    with plain_llm(path) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(
            temperature=0.5, top_k=30, min_p=0.0625, repetition_penalty=1.25
        )
    plain = write_gguf(tmp_path / "plain.gguf")
    assert open_checkpoint(plain).generation_config() == {}
