"""Checkpoints: right tensors under Hugging Face names, and no file that is half a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import CONFIG, random_weights, write_gguf, write_hf
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from outpace.errors import ModelError
from outpace.models.hf.config import config_from_hf
from outpace.models.hub import names
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors, expected_shapes, num_parameters

TINY = config_from_hf(CONFIG)


def tiny(**changes: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    values = CONFIG | changes
    return values, random_weights(config_from_hf(values))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_expected_tensors_are_those_of_transformers(biases: bool, tied: bool) -> None:
    values = CONFIG | {
        "attention_bias": biases,
        "mlp_bias": biases,
        "tie_word_embeddings": tied,
        "head_dim": 8,
    }
    model = LlamaForCausalLM(LlamaConfig(**values))
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if tied:
        del shapes["lm_head.weight"]
    config = config_from_hf(values)
    assert expected_shapes(config) == shapes
    assert num_parameters(config) == model.num_parameters()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_directory_saved_by_transformers(tmp_path: Path, dtype: torch.dtype) -> None:
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(dtype)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    check_tensors(checkpoint)
    assert checkpoint.stored_dtype == str(dtype).removeprefix("torch.")
    weights = model.state_dict()
    for name in checkpoint.names():
        assert checkpoint.load(name).dtype == dtype
        assert torch.equal(checkpoint.load(name), weights[name])


@pytest.mark.parametrize("num_shards", [1, 3])
def test_shards(tmp_path: Path, num_shards: int) -> None:
    weights = random_weights(TINY)
    checkpoint = open_checkpoint(write_hf(tmp_path, weights=weights, num_shards=num_shards))
    check_tensors(checkpoint)
    assert checkpoint.names() == set(weights)
    assert all(torch.equal(checkpoint.load(name), weights[name]) for name in weights)
    assert len(checkpoint.files()) == num_shards
    assert all(file.is_file() for file in checkpoint.files())


def test_gguf_gives_the_names_and_rows_of_hugging_face(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", weights=weights))
    check_tensors(checkpoint)
    assert checkpoint.names() == set(weights)
    assert checkpoint.stored_dtype == "F32"
    for name, weight in weights.items():
        assert checkpoint.shape(name) == tuple(weight.shape)
        assert torch.equal(checkpoint.load(name), weight)
        assert checkpoint.load(name).is_contiguous()


def test_stored_dtype_is_that_of_the_projections(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", kind=Kind.Q4_0))
    assert checkpoint.stored_dtype == "Q4_0"
    check_tensors(checkpoint)


def test_fingerprint_follows_the_content_and_not_the_name(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    first = open_checkpoint(write_hf(tmp_path / "a", weights=weights))
    copy = open_checkpoint(write_hf(tmp_path / "b", weights=weights))
    sharded = open_checkpoint(write_hf(tmp_path / "c", weights=weights, num_shards=2))
    assert first.fingerprint() == copy.fingerprint() == sharded.fingerprint()
    retrained = open_checkpoint(write_hf(tmp_path / "d", weights=random_weights(TINY, seed=1)))
    other_norm = dict(weights) | {"model.norm.weight": weights["model.norm.weight"] + 1}
    changed = open_checkpoint(write_hf(tmp_path / "e", weights=other_norm))
    theta = open_checkpoint(write_hf(tmp_path / "f", weights=weights, config={"rope_theta": 2.0}))
    half = {name: weight.half() for name, weight in weights.items()}
    rounded = open_checkpoint(write_hf(tmp_path / "g", weights=half))
    stored = open_checkpoint(write_gguf(tmp_path / "h.gguf", weights=weights))
    keys = [c.fingerprint() for c in (first, retrained, changed, theta, rounded, stored)]
    assert len(set(keys)) == len(keys)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_tensors(open_checkpoint(path))
    return str(caught.value)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    values, weights = tiny()
    del weights["model.layers.1.mlp.up_proj.weight"]
    reason = refusal(write_hf(tmp_path, config=values, weights=weights))
    assert reason.endswith("missing tensors: model.layers.1.mlp.up_proj.weight")


def test_wrong_shapes_name_tensor_expected_and_found(tmp_path: Path) -> None:
    values, weights = tiny()
    name = "model.layers.0.self_attn.k_proj.weight"
    weights[name] = torch.zeros(64, 64)
    reason = refusal(write_hf(tmp_path, config=values, weights=weights))
    assert f"{name} must have shape (32, 64) by the configuration, found (64, 64)" in reason


def test_extra_tensors_are_refused_except_rotary_frequencies(tmp_path: Path) -> None:
    values, weights = tiny()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    check_tensors(open_checkpoint(write_hf(tmp_path / "a", config=values, weights=weights)))
    weights["model.layers.2.input_layernorm.weight"] = torch.zeros(64)
    weights["model.layers.0.self_attn.q_norm.weight"] = torch.zeros(64)
    reason = refusal(write_hf(tmp_path / "b", config=values, weights=weights))
    assert "does not use: model.layers.0.self_attn.q_norm.weight, model.layers.2." in reason


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path: Path) -> None:
    values, weights = tiny()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    check_tensors(open_checkpoint(write_hf(tmp_path / "a", config=values, weights=weights)))
    weights["lm_head.weight"][3, 3] += 1
    assert "lm_head.weight differs" in refusal(write_hf(tmp_path / "b", weights=weights))


def test_unreadable_types_are_refused_by_name(tmp_path: Path) -> None:
    values, weights = tiny()
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    assert "is stored as F8_E4M3" in refusal(write_hf(tmp_path, config=values, weights=weights))


def test_more_layers_than_any_file_holds(tmp_path: Path) -> None:
    path = write_hf(tmp_path)
    values = json.loads((path / "config.json").read_text())
    for count, reason in (
        (4096, "4096 layers, but only 20 tensors"),
        (2**31 - 1, "num_hidden_layers must be at most 4096"),
    ):
        (path / "config.json").write_text(json.dumps(values | {"num_hidden_layers": count}))
        assert reason in refusal(path)


def test_gguf_tensors_that_do_not_belong(tmp_path: Path) -> None:
    norm = {"blk.0.attn_q_norm.weight": np.zeros(16, np.float32)}
    assert "blk.0.attn_q_norm.weight" in refusal(write_gguf(tmp_path / "a.gguf", extra=norm))


def test_a_tensor_with_an_endless_number_is_refused_by_name(tmp_path: Path) -> None:
    name = "blk." + "9" * 5000 + ".attn_q.weight"
    config, weights = tiny()
    write_hf(tmp_path, config=config, weights=weights | {name: torch.zeros(1)})
    assert "does not use: blk.999" in refusal(tmp_path)


def test_directories_that_are_not_models(tmp_path: Path) -> None:
    assert "config.json: not found" in refusal(tmp_path)
    path = write_hf(tmp_path / "model")
    (path / "adapter_config.json").write_text("{}")
    assert "is a LoRA adapter" in refusal(path)
    (path / "adapter_config.json").unlink()
    (path / "model.safetensors").unlink()
    assert "no weights found; expected model.safetensors" in refusal(path)
    (path / "pytorch_model.bin").write_bytes(b"\x80")
    assert "pytorch_model.bin: damaged PyTorch file, or not one" in refusal(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "\ud800".encode("utf-8", "surrogatepass")])
def test_damaged_config(tmp_path: Path, content: str | bytes) -> None:
    path = write_hf(tmp_path)
    raw = content.encode() if isinstance(content, str) else content
    (path / "config.json").write_bytes(raw)
    assert "config.json: " in refusal(path)


def test_damaged_safetensors(tmp_path: Path) -> None:
    path = write_hf(tmp_path)
    file = path / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (b"", whole[:4], whole[: len(whole) // 2], b"\xff" * 64, whole + b"x"):
        file.write_bytes(damaged)
        assert "model.safetensors: damaged safetensors file" in refusal(path)


def test_paths_that_are_not_checkpoints(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.gguf")
    for name, reason in [
        ("a.bin", "give the directory that holds it"),
        ("a.safetensors", "give the directory that holds it"),
        ("a.gguf", "not a GGUF file"),
    ]:
        (tmp_path / name).write_bytes(b"nothing of the kind")
        assert reason in refusal(tmp_path / name)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "model", num_shards=2)


def edit_index(path: Path, **changes: Any) -> None:
    index = path / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"] |= changes.pop("weight_map", {})
    index.write_text(json.dumps(values | changes))


def test_index_that_leaves_the_directory(sharded: Path) -> None:
    save_file({"x": torch.zeros(1)}, sharded.parent / "secret.safetensors")
    for place in ("../secret.safetensors", str(sharded.parent / "secret.safetensors"), "a/../../b"):
        edit_index(sharded, weight_map={"x": place})
        assert "outside the model's directory" in refusal(sharded)


def test_index_that_disagrees_with_the_shards(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))
    edit_index(sharded, weight_map={"x": first.name})
    assert f"says x is in {first.name}" in refusal(sharded)
    edit_index(sharded, weight_map={"x": 3})
    assert "file of x must be a name, got 3" in refusal(sharded)
    edit_index(sharded, weight_map={"x": "model-00003-of-00003.safetensors"})
    assert "shard model-00003-of-00003.safetensors" in refusal(sharded)
    second.unlink()
    assert "is missing" in refusal(sharded)


def test_index_without_a_map(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": []}')
    assert "weight_map must be an object" in refusal(sharded)


def test_tensor_in_two_shards(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    assert "is in both" in refusal(sharded)


def test_parts_of_a_split_gguf(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", metadata={"split.count": 3})
    assert "one part of a model split into 3 files" in refusal(path)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("small") / "a.gguf").read_bytes()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 9000), st.sampled_from([0, 1, 8, 255]) | st.integers(0, 255)),
        min_size=1,
        max_size=4,
    )
)
def test_mutated_gguf_models_open_or_raise_model_error(
    tmp_path: Path, small_file: bytes, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(small_file)
    for place, value in changes:
        content[place] = value
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(path)
        check_tensors(checkpoint)
        checkpoint.tokenizer().encode("hello 12")
        checkpoint.fingerprint()
        for name in checkpoint.names():
            assert tuple(checkpoint.load(name).shape) == checkpoint.shape(name)
    except ModelError:
        pass


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1600), value=st.integers(0, 255))
def test_mutated_safetensors_open_or_raise_model_error(
    tmp_path: Path, place: int, value: int
) -> None:
    path = tmp_path / "model"
    if not path.exists():
        write_hf(path)
        (tmp_path / "whole").write_bytes((path / "model.safetensors").read_bytes())
    content = bytearray((tmp_path / "whole").read_bytes())
    content[place] = value
    (path / "model.safetensors").write_bytes(content)
    try:
        checkpoint = open_checkpoint(path)
        check_tensors(checkpoint)
        checkpoint.fingerprint()
    except ModelError:
        pass


@pytest.mark.model
def test_default_model_opens_whole() -> None:
    checkpoint = open_checkpoint(names.resolve("smollm2-135m"))
    check_tensors(checkpoint)
    assert checkpoint.stored_dtype == "Q4_1"
    assert checkpoint.tokenizer().vocab_size == checkpoint.config.vocab_size
    assert num_parameters(checkpoint.config) == 134_515_008


@pytest.mark.model
@pytest.mark.slow
def test_default_model_equals_transformers_tensor_by_tensor(default_oracle: Any) -> None:
    """And its configuration as well, by what transformers computes from either."""
    path = names.resolve("smollm2-135m")
    checkpoint = open_checkpoint(path)
    reference = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    weights = reference.state_dict()
    for name in checkpoint.names():
        assert torch.equal(checkpoint.load(name), weights[name]), name
    reader = gguf.GGUFReader(path)
    assert len(checkpoint.names()) == len(reader.tensors)
    token_ids = torch.arange(100, 164)[None]
    with torch.inference_mode():
        assert torch.equal(reference(token_ids).logits, default_oracle(token_ids).logits)
