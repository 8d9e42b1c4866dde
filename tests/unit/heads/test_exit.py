"""Trained exits on disk and computed: files, refusals, and numbers against the network in torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heads import random_exit, randomise, some_vocabulary
from native_models import loaded, odd_model, usable_paths
from safetensors.torch import load_file, save_file
from tiny import tiny_model

from outpace.errors import ModelError
from outpace.heads.exit import ExitConfig, ExitModule, read_exit, write_exit
from outpace.heads.exit_runner import open_exit
from outpace.heads.target_parts import TargetParts
from outpace.models.load import LoadedModel

TARGET = tiny_model(seed=1, num_layers=4)
PARTS = TargetParts(TARGET)
SHAPES = [{}, {"rank": 5}, {"draft_vocab_size": 20, "rank": 32}, {"draft_vocab_size": 95}]


def change(directory: Path, key: str, value: Any) -> None:
    path = directory / "config.json"
    values = json.loads(path.read_text())
    values.pop(key, None)
    if value is not None:
        values[key] = value
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_read(shape: dict[str, Any], tmp_path: Path) -> None:
    vocabulary = some_vocabulary(96, shape.get("draft_vocab_size"))
    values = {"hidden_size": 32, "vocab_size": 96, "exit_layer": 2, "rms_norm_eps": 1e-5, **shape}
    values["draft_vocab_size"] = len(vocabulary)
    module = ExitModule(ExitConfig(**values))
    randomise(module)
    module.to(torch.bfloat16)
    write_exit(tmp_path, module, vocabulary, PARTS)
    found = read_exit(tmp_path, PARTS)
    assert found.config == module.config
    assert np.array_equal(found.draft_token_ids, vocabulary)
    assert found.binding.target_fingerprint == TARGET.fingerprint
    again = found.module()
    for name, tensor in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.float())
    expected = {"norm.weight", "d2t", "t2d"} if len(vocabulary) < 96 else {"norm.weight"}
    expected |= {"down.weight", "up.weight"} if "rank" in shape else {"linear.weight"}
    assert set(load_file(tmp_path / "model.safetensors")) == expected


def expected_logits(directory: Path, target: LoadedModel, hidden: np.ndarray) -> np.ndarray:
    """By the module in torch, on the target's head rows; -inf for tokens that the draft lacks."""
    parts = TargetParts(target)
    found = read_exit(directory, parts)
    rows = torch.from_numpy(parts.head_rows(found.draft_token_ids.tolist()))
    logits = np.full((len(hidden), parts.vocab_size), -np.inf, np.float32)
    with torch.no_grad():
        logits[:, found.draft_token_ids] = found.module()(torch.from_numpy(hidden)) @ rows.T
    return logits


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_are_the_networks(shape: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    directory = random_exit(TARGET, tmp_path / "exit", exit_layer=3, **shape)
    hidden = np.random.default_rng(0).normal(size=(6, 32)).astype(np.float32) * 3
    rows = [5, 0, 2]
    expected = expected_logits(directory, TARGET, hidden)[rows]
    trained = open_exit(directory, TARGET)
    assert trained.num_layers == 3
    logits = trained.logits(torch.from_numpy(hidden).to(dtype), rows)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert trained.best(torch.from_numpy(hidden).to(dtype), rows) == expected.argmax(1).tolist()


@pytest.mark.skipif(not usable_paths(), reason="the native library is not built")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "q4_1"])
@pytest.mark.parametrize("shape", SHAPES)
def test_on_the_native_step(dtype: str, shape: dict[str, Any], tmp_path: Path) -> None:
    """Rounding moves logits a little; see the same test of Medusa heads."""
    target = loaded(odd_model(dtype))
    directory = random_exit(target, tmp_path / "exit", **shape)
    hidden = np.random.default_rng(0).normal(size=(4, 96)).astype(np.float32)
    expected = expected_logits(directory, target, hidden)
    logits = open_exit(directory, target).logits(torch.from_numpy(hidden), [0, 1, 2, 3])
    has_token = np.isfinite(expected)
    assert np.array_equal(np.isfinite(logits), has_token)
    error = np.abs(logits[has_token] - expected[has_token]).max()
    assert error < 0.05 * expected[has_token].std()


def test_padding_of_the_vocabulary_is_never_drafted(tmp_path: Path) -> None:
    """107 rows of which 100 are tokens: the others have no logit, in the whole vocabulary and in a
    part of it."""
    if not usable_paths():
        pytest.skip("the native library is not built")
    target = loaded(odd_model("float32", num_logits=100))
    hidden = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 96)).astype(np.float32))
    for size in (None, 60):
        directory = random_exit(target, tmp_path / str(size), draft_vocab_size=size)
        trained = open_exit(directory, target)
        logits = trained.logits(hidden, range(9))
        assert logits.shape == (9, 100)
        assert trained.best(hidden, range(9)) == logits.argmax(1).tolist()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "medusa", "model_type of a trained exit is 'outpace_early_exit'"),
        ("exit_layers", 2, "'exit_layers' is not known"),
        ("exit_layer", 0, "exit_layer must be a whole number of at least 1"),
        ("exit_layer", 4, "exit_layer is 4, and tiny.* has 4 layers"),
        ("exit_layer", None, "exit_layer"),
        ("draft_vocab_size", 97, "from 1 to 96"),
        ("draft_vocab_size", 40, "d2t"),
        ("rank", 33, "rank must be a whole number from 1 to 32"),
        ("rank", 4, "unknown tensor linear.weight"),
        ("rms_norm_eps", 0, "rms_norm_eps must be a positive number"),
        ("rms_norm_eps", True, "rms_norm_eps"),
        ("vocab_size", 107, "107 vocabulary rows, and tiny"),
        ("hidden_size", 64, "64 hidden channels, and tiny"),
        ("outpace", None, "must say under 'outpace' which target"),
        ("outpace", {"format": 1}, "damaged"),
    ],
)
def test_wrong_configurations_are_refused(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    directory = random_exit(TARGET, tmp_path / "exit")
    read_exit(directory, PARTS)
    change(directory, key, value)
    with pytest.raises(ModelError, match=message):
        read_exit(directory, PARTS)


def test_a_stored_output_head_is_refused(tmp_path: Path) -> None:
    directory = random_exit(TARGET, tmp_path / "exit")
    binding = json.loads((directory / "config.json").read_text())["outpace"]
    change(directory, "outpace", {**binding, "lm_head": "stored"})
    with pytest.raises(ModelError, match="lm_head 'target'"):
        read_exit(directory, PARTS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("linear.weight", torch.zeros(32, 31), r"is \[32, 31\], by config.json"),
        ("linear.weight", torch.zeros(32, 32, dtype=torch.int8), "floating point"),
        ("linear.weight", None, "linear.weight is missing"),
        ("lm_head.weight", torch.zeros(1), "unknown tensor lm_head.weight"),
        ("d2t", torch.zeros(20, dtype=torch.int64), "disagree"),
    ],
)
def test_wrong_tensors_are_refused(
    name: str, value: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    directory = random_exit(TARGET, tmp_path / "exit", draft_vocab_size=20)
    tensors = load_file(directory / "model.safetensors")
    tensors.pop(name, None)
    if value is not None:
        tensors[name] = value
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        read_exit(directory, PARTS)


def test_other_targets_are_refused(tmp_path: Path) -> None:
    directory = random_exit(TARGET, tmp_path / "exit")
    with pytest.raises(ModelError, match=r"trained for tiny-96-1.* weights are others"):
        open_exit(directory, tiny_model(seed=2, num_layers=4))
    layer_norm = tiny_model(seed=1, num_layers=4, norm="layer")
    module = read_exit(directory, PARTS).module()
    write_exit(directory, module, some_vocabulary(96, None), TargetParts(layer_norm))
    with pytest.raises(ModelError, match="layer norm"):
        open_exit(directory, layer_norm)
    with pytest.raises(ModelError, match="no draft"):
        open_exit(tmp_path, TARGET)
