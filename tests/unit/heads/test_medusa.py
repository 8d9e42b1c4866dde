"""Medusa heads on disk and computed: files, refusals, and numbers against the network in torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heads import random_medusa, randomise, some_vocabulary
from native_models import loaded, odd_model, usable_paths
from safetensors.torch import load_file, save_file
from tiny import tiny_model

from outpace.errors import ModelError
from outpace.heads.medusa import MedusaConfig, MedusaModule, read_medusa, write_medusa
from outpace.heads.medusa_runner import open_medusa
from outpace.heads.target_parts import TargetParts
from outpace.models.load import LoadedModel

TARGET = tiny_model(seed=1)
PARTS = TargetParts(TARGET)
SHAPES = [
    {},
    {"num_heads": 1, "bias": False},
    {"num_heads": 4, "num_layers": 3, "draft_vocab_size": 20},
]


def change(directory: Path, key: str, value: Any) -> None:
    path = directory / "config.json"
    values = json.loads(path.read_text())
    if value is None:
        del values[key]
    else:
        values[key] = value
    path.write_text(json.dumps(values))


def change_tensors(directory: Path, do: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    do(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lm_head", ["target", "stored"])
def test_what_is_written_is_read(shape: dict[str, Any], lm_head: str, tmp_path: Path) -> None:
    vocabulary = some_vocabulary(96, shape.get("draft_vocab_size"))
    values = {"hidden_size": 32, "vocab_size": 96, **shape, "draft_vocab_size": len(vocabulary)}
    module = MedusaModule(MedusaConfig(**values))
    randomise(module)
    module.to(torch.bfloat16)
    write_medusa(tmp_path, module, vocabulary, PARTS, lm_head=lm_head)
    found = read_medusa(tmp_path, PARTS)
    assert found.config == module.config
    assert np.array_equal(found.draft_token_ids, vocabulary)
    assert found.binding is not None
    assert found.binding.lm_head == lm_head
    assert len(found.lm_heads) == (lm_head == "stored")
    again = found.module()
    for name, tensor in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.float())
    names = set(load_file(tmp_path / "model.safetensors"))
    assert "blocks.0.layers.0.weight" in names
    assert ("token_map" in names) == ("draft_vocab_size" in shape)
    assert ("lm_heads.0.weight" in names) == (lm_head == "stored")


def expected_logits(directory: Path, target: LoadedModel, features: np.ndarray) -> np.ndarray:
    """By the module in torch, on the target's head rows."""
    parts = TargetParts(target)
    found = read_medusa(directory, parts)
    module, rows = found.module(), torch.from_numpy(parts.head_rows(found.draft_token_ids.tolist()))
    norm = torch.from_numpy(np.array(parts.final_norm, np.float32))
    x = torch.nn.functional.rms_norm(torch.from_numpy(features), norm.shape, norm, parts.norm_eps)
    with torch.no_grad():
        heads = [module(head, x) @ rows.T for head in range(found.config.num_heads)]
    return torch.stack(heads).numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_the_networks(shape: dict[str, Any], tmp_path: Path) -> None:
    directory = random_medusa(TARGET, tmp_path / "heads", **shape)
    features = np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32) * 3
    expected = expected_logits(directory, TARGET, features)
    runner = open_medusa(directory, TARGET)
    for num_heads in range(1, len(expected) + 1):
        logits = runner.logits(features, num_heads)
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected[:num_heads], rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not usable_paths(), reason="the native library is not built")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "q4_1"])
@pytest.mark.parametrize("draft_vocab_size", [None, 40])
def test_on_the_native_step(dtype: str, draft_vocab_size: int | None, tmp_path: Path) -> None:
    """Rounding of weights to 8 bits and of activations moves logits a little; a wrong bias, layer
    or row would move them as far as they differ among themselves."""
    target = loaded(odd_model(dtype))
    shape = {"num_layers": 2, "draft_vocab_size": draft_vocab_size}
    directory = random_medusa(target, tmp_path / "heads", **shape)
    features = np.random.default_rng(0).normal(size=(4, 96)).astype(np.float32)
    expected = expected_logits(directory, target, features)
    logits = open_medusa(directory, target).logits(features, 3)
    assert logits.shape == expected.shape
    assert np.abs(logits - expected).max() < 0.05 * expected.std()


def test_heads_of_their_own(tmp_path: Path) -> None:
    """As other libraries make them: an output head for each head, and nothing about a target."""
    directory = random_medusa(TARGET, tmp_path / "heads", num_heads=2)
    generator = torch.Generator().manual_seed(3)
    own = [torch.randn(96, 32, generator=generator) for _ in range(2)]
    change_tensors(
        directory, lambda t: t.update({f"lm_heads.{i}.weight": w for i, w in enumerate(own)})
    )
    change(directory, "outpace", None)
    change(directory, "original_lm_head", None)
    features = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    logits = open_medusa(directory, TARGET).logits(features, 2)
    shared = expected_logits(directory, TARGET, features)
    rows = torch.from_numpy(PARTS.head_rows(range(96)))
    for head in range(2):
        hidden = torch.linalg.lstsq(rows, torch.from_numpy(shared[head]).T).solution.T
        np.testing.assert_allclose(logits[head], hidden @ own[head].T, rtol=1e-2, atol=1e-2)


def test_other_fields_of_the_layout(tmp_path: Path) -> None:
    directory = random_medusa(TARGET, tmp_path / "heads")
    for key, value in (("topk", 10), ("max_paths", 64), ("dtype", "float32"), ("logit_scale", 1.0)):
        change(directory, key, value)
    change(directory, "truncated_vocab_size", None)
    assert read_medusa(directory, PARTS).config.draft_vocab_size == 96


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "llama", "model_type of Medusa heads in vLLM's layout is 'medusa'"),
        ("medusa_num_heads", 3, "'medusa_num_heads' is not known"),
        ("logit_scale", 0.5, "logit_scale"),
        ("num_heads", 0, "num_heads must be a whole number of at least 1, got 0"),
        ("num_heads", True, "num_heads"),
        ("num_heads", None, "num_heads"),
        ("num_hidden_layers", 1.5, "num_hidden_layers"),
        ("truncated_vocab_size", 97, "truncated_vocab_size must be a whole number from 1 to 96"),
        ("original_lm_head", "yes", "original_lm_head must be true or false"),
        ("medusa_fc_bias", 1, "medusa_fc_bias"),
        ("medusa_fc_bias", False, "unknown tensor blocks.0.layers.0.bias"),
        ("num_heads", 4, "tensor blocks.3.layers.0.bias is missing"),
        ("truncated_vocab_size", 40, "tensor token_map is missing"),
        ("vocab_size", 95, "95 vocabulary rows, and tiny"),
        ("hidden_size", 16, "16 hidden channels, and tiny"),
        ("outpace", {"format": 1}, "damaged"),
        ("outpace", None, "tensor lm_heads.0.weight is missing"),
    ],
)
def test_wrong_configurations_are_refused(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    directory = random_medusa(TARGET, tmp_path / "heads")
    read_medusa(directory, PARTS)
    change(directory, key, value)
    if key == "vocab_size":
        change(directory, "truncated_vocab_size", value)
    with pytest.raises(ModelError, match=message):
        read_medusa(directory, PARTS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("blocks.1.layers.0.weight", torch.zeros(32, 31), r"is \[32, 31\], by config.json"),
        ("blocks.1.layers.0.weight", torch.zeros(32, 32, dtype=torch.int8), "floating point"),
        ("blocks.1.layers.0.weight", None, "blocks.1.layers.0.weight is missing"),
        ("fc.weight", torch.zeros(1), "unknown tensor fc.weight"),
        ("token_map", torch.arange(19), "token_map must hold 20 ascending"),
        ("token_map", torch.arange(20).flip(0), "token_map must hold 20 ascending"),
        ("token_map", torch.arange(80, 100), "from 0 to 95"),
        ("token_map", torch.arange(20) - 1, "token_map"),
        ("token_map", torch.arange(20).float(), "token_map"),
        ("token_map", torch.zeros(20, dtype=torch.int64), "token_map"),
    ],
)
def test_wrong_tensors_are_refused(
    name: str, value: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    directory = random_medusa(TARGET, tmp_path / "heads", draft_vocab_size=20)

    def do(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value

    change_tensors(directory, do)
    with pytest.raises(ModelError, match=message):
        read_medusa(directory, PARTS)


def test_other_targets_are_refused(tmp_path: Path) -> None:
    directory = random_medusa(TARGET, tmp_path / "heads")
    with pytest.raises(ModelError, match=r"trained for tiny-96-1.* weights are others"):
        open_medusa(directory, tiny_model(seed=2))
    change(directory, "outpace", None)
    layer_norm = tiny_model(seed=1, norm="layer")
    write_medusa(
        directory,
        read_medusa(random_medusa(TARGET, tmp_path / "more"), PARTS).module(),
        some_vocabulary(96, None),
        TargetParts(layer_norm),
    )
    with pytest.raises(ModelError, match="layer norm"):
        open_medusa(directory, layer_norm)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"outpace train medusa --model tiny"):
        open_medusa(None, TARGET)
    with pytest.raises(ModelError, match="no draft"):
        open_medusa(tmp_path, TARGET)
    directory = random_medusa(TARGET, tmp_path / "heads")
    (directory / "model.safetensors").write_bytes(b"12345")
    with pytest.raises(ModelError, match="damaged"):
        open_medusa(directory, TARGET)
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model.safetensors"):
        open_medusa(directory, TARGET)
