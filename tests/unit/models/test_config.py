"""ModelConfig: what is derived, and that none can be made wrong."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_config

from outpace.errors import ModelError
from outpace.models.config import LayerKind, Rope, read_json

CONFIG = tiny_config()
INTEGERS = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
]
NUMBERS = ["norm_eps", "attention_scale", "embedding_scale", "attention_softcap", "final_softcap"]
FLAGS = [
    *("tie_word_embeddings", "gated_mlp", "qkv_bias", "o_bias", "mlp_bias", "qk_norm"),
    "learned_positions",
]


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", [0, -1, 2**40, 2.0, True, "8", [8], None])
def test_bad_sizes_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"tiny: {field} must be a positive whole number"):
        replace(CONFIG, **{field: value})


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 10**400, "1e-5", True])
def test_bad_numbers_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"tiny: {field} must be a positive finite number"):
        replace(CONFIG, **{field: value})


@pytest.mark.parametrize("field", FLAGS)
def test_bad_flags_name_the_field(field: str) -> None:
    with pytest.raises(ModelError, match=f"tiny: {field} must be true or false, got 1"):
        replace(CONFIG, **{field: 1})


@pytest.mark.parametrize("field", ["norm", "block", "activation"])
def test_bad_choices_name_the_field(field: str) -> None:
    with pytest.raises(ModelError, match=f"tiny: {field} must be one of .* got 'relu'"):
        replace(CONFIG, **{field: "relu"})


def test_sizes_that_do_not_fit_together() -> None:
    with pytest.raises(ModelError, match=r"num_attention_heads \(4\) must be a multiple of num_k"):
        replace(CONFIG, num_key_value_heads=3)
    with pytest.raises(ModelError, match="num_hidden_layers must be a positive whole number"):
        replace(CONFIG, layers=())
    with pytest.raises(ModelError, match="10 channels turn in heads of 8"):
        replace(CONFIG, layers=(LayerKind(Rope((1.0,) * 5)),))
    with pytest.raises(ModelError, match="sliding_window must be positive, got 0"):
        replace(CONFIG, layers=(LayerKind(None, window=0),))


def test_what_is_derived() -> None:
    assert CONFIG.num_hidden_layers == 2
    assert Rope((1.0, 0.1, 0.01)).dim == 6
    assert replace(CONFIG, norm_eps=1).norm_eps == 1.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "not found; a hint"),
        (b"[1]", "must hold a JSON object, found list"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_files_that_hold_no_object(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=reason):
        read_json(path, "a hint")


def test_importing_configurations_and_hub_does_not_import_torch() -> None:
    modules = ("config", "hf.config", "gguf.config", "hf.layouts", "hub.names")
    imports = ", ".join(f"outpace.models.{module}" for module in modules)
    code = f"import sys, {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
