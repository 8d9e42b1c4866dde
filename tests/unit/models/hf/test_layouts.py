"""Directories whose tensors are named or fused otherwise: found, cut, and refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import CASES, random_model, save_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from outpace.errors import ModelError
from outpace.models.hf.config import config_from_hf
from outpace.models.hf.layouts import hf_layout
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors, expected_shapes

Tensors = dict[str, torch.Tensor]


def rewrite(path: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Change the tensors of a saved model."""
    file = path / "model.safetensors"
    save_file({n: t.contiguous() for n, t in change(load_file(file)).items()}, file)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_tensors(open_checkpoint(path))
    return str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_has_the_expected_shape(tmp_path: Path, case: str) -> None:
    save_model(case, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    check_tensors(checkpoint)
    expected = expected_shapes(checkpoint.config)
    assert checkpoint.names() == set(expected)
    for name, shape in expected.items():
        tensor = checkpoint.load(name)
        assert tuple(tensor.shape) == shape
        assert tensor.is_contiguous()


def test_fused_projections_of_phi3(tmp_path: Path) -> None:
    attention = save_model("phi3", tmp_path).model.layers[1].self_attn
    checkpoint = open_checkpoint(tmp_path)
    q, k, v = attention.qkv_proj.weight.split([48, 16, 16])
    for letter, expected in (("q", q), ("k", k), ("v", v)):
        found = checkpoint.load(f"model.layers.1.self_attn.{letter}_proj.weight")
        assert torch.equal(found, expected)
    assert checkpoint.stored_name("model.layers.1.mlp.up_proj.weight") == (
        "model.layers.1.mlp.gate_up_proj.weight"
    )


def test_heads_in_turn_of_gpt_neox(tmp_path: Path) -> None:
    attention = save_model("gpt_neox", tmp_path).gpt_neox.layers[0].attention
    checkpoint = open_checkpoint(tmp_path)
    heads = attention.query_key_value.bias.view(5, 3, 12)
    for part, letter in enumerate("qkv"):
        found = checkpoint.load(f"model.layers.0.self_attn.{letter}_proj.bias")
        assert torch.equal(found, heads[:, part].flatten())


def test_transposed_weights_of_gpt2(tmp_path: Path) -> None:
    block = save_model("gpt2", tmp_path).transformer.h[0]
    checkpoint = open_checkpoint(tmp_path)
    assert torch.equal(
        checkpoint.load("model.layers.0.mlp.up_proj.weight"), block.mlp.c_fc.weight.T
    )
    found = checkpoint.load("model.layers.0.self_attn.k_proj.weight")
    assert torch.equal(found, block.attn.c_attn.weight[:, 40:80].T)


@pytest.mark.parametrize(
    "case", ["llama biases", "gemma3_text", "gpt2", "qwen2", "gpt_neox sequential"]
)
def test_models_saved_without_their_head(tmp_path: Path, case: str) -> None:
    """Tied ones: the tensors of the base class are all there is, under names without a prefix."""
    model = random_model(case)
    model.save_pretrained(tmp_path / "whole")
    model.base_model.save_pretrained(tmp_path / "base")
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    assert not any(n.startswith("model.") for n in load_file(tmp_path / "base/model.safetensors"))
    whole, base = open_checkpoint(tmp_path / "whole"), open_checkpoint(tmp_path / "base")
    check_tensors(base)
    assert base.names() == whole.names()
    assert all(torch.equal(base.load(name), whole.load(name)) for name in base.names())


@pytest.mark.parametrize(
    ("text_prefix", "other_prefix"),
    [("language_model.model.", ""), ("model.language_model.", "model.")],
)
def test_both_prefixes_of_gemma3(tmp_path: Path, text_prefix: str, other_prefix: str) -> None:
    model = save_model("gemma3", tmp_path)
    before = open_checkpoint(tmp_path)
    expected = {name: before.load(name) for name in before.names()}

    def renamed(tensors: Tensors) -> Tensors:
        language, rest = {}, {}
        for name, tensor in tensors.items():
            stem = name.removeprefix("model.")
            for prefix in ("language_model.model.", "language_model."):
                if stem.startswith(prefix):
                    language[text_prefix + stem.removeprefix(prefix)] = tensor
                    break
            else:
                rest[other_prefix + stem] = tensor
        assert language
        assert rest
        return language | rest

    rewrite(tmp_path, renamed)
    check_tensors(open_checkpoint(tmp_path))
    after = open_checkpoint(tmp_path)
    assert after.names() == set(expected)
    assert all(torch.equal(after.load(name), expected[name]) for name in expected)
    assert model.config.model_type == "gemma3"


BUFFERS = {
    "llama": "model.layers.0.self_attn.rotary_emb.inv_freq",
    "gpt2": "transformer.h.0.attn.bias",
    "gpt2 unscaled": "h.1.attn.masked_bias",
    "gpt_neox": "gpt_neox.layers.1.attention.rotary_emb.inv_freq",
    "gpt_neox sequential": "gpt_neox.layers.0.attention.masked_bias",
}


@pytest.mark.parametrize("case", BUFFERS)
def test_tables_and_masks_are_no_weights(tmp_path: Path, case: str) -> None:
    save_model(case, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {BUFFERS[case]: torch.zeros(3)})
    check_tensors(open_checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("case", "stored"),
    [
        ("gpt2", "transformer.h.0.attn.c_attn.gate"),
        ("gpt2", "transformer.h.0.crossattention.c_attn.weight"),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias.weight"),
        ("phi3", "model.layers.0.self_attn.qkv_proj.bias"),
        ("stablelm", "model.layers.0.self_attn.q_layernorm.norms.0.weight"),
        ("gemma3", "model.audio_tower.weight"),
        ("llama", "unheard.of"),
    ],
)
def test_a_tensor_too_many_is_refused(tmp_path: Path, case: str, stored: str) -> None:
    save_model(case, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {stored: torch.ones(80)})
    assert refusal(tmp_path).endswith(f"tensors that this model does not use: {stored}")


@pytest.mark.parametrize(
    ("case", "stored", "reason"),
    [
        ("phi3", "model.layers.0.self_attn.qkv_proj.weight", "must have 80 rows, found shape"),
        ("phi3", "model.layers.1.mlp.gate_up_proj.weight", "must have 112 rows, found shape"),
        ("gpt2", "transformer.h.0.attn.c_attn.weight", "must have shape (40, 40)"),
        ("gpt2", "transformer.h.0.mlp.c_fc.weight", "must have shape (160, 40)"),
        ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value.weight", "must have 180 rows"),
        ("gpt_neox", "gpt_neox.embed_in.weight", "must have shape (67, 60)"),
        ("llama", "model.norm.weight", "must have shape (48,)"),
    ],
)
def test_a_wrong_shape_names_the_stored_tensor(
    tmp_path: Path, case: str, stored: str, reason: str
) -> None:
    save_model(case, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {stored: tensors[stored][:-1]})
    message = refusal(tmp_path)
    assert f"tensor {stored}" in message
    assert reason in message
    assert "found" in message


def test_a_scalar_where_a_matrix_is_fused(tmp_path: Path) -> None:
    save_model("phi3", tmp_path)
    name = "model.layers.0.self_attn.qkv_proj.weight"
    rewrite(tmp_path, lambda tensors: tensors | {name: torch.tensor(1.0)})
    assert f"tensor {name} must have 80 rows, found shape ()" in refusal(tmp_path)


def test_one_tensor_under_two_names(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"norm.weight": torch.zeros(48)})
    assert "model.norm.weight and norm.weight both hold model.norm.weight" in refusal(tmp_path)


def test_weights_of_a_tied_head_must_be_the_embedding(tmp_path: Path) -> None:
    save_model("gpt2", tmp_path)
    rewrite(tmp_path, lambda t: t | {"lm_head.weight": t["transformer.wte.weight"].clone()})
    check_tensors(open_checkpoint(tmp_path))
    rewrite(tmp_path, lambda t: t | {"lm_head.weight": t["lm_head.weight"] + 1})
    assert "lm_head.weight differs from model.embed_tokens.weight" in refusal(tmp_path)


def test_names_that_only_look_like_layers() -> None:
    config = config_from_hf({"model_type": "llama"} | CASES["llama"] | {"rms_norm_eps": 1e-6})
    names = ["model.layers.01.mlp.up_proj.weight", "model.layers.9999999999.mlp.up_proj.weight"]
    names += ["model.layers.x.norm.weight", "", ".", "layers.1.", "model."]
    assert {name: source.stored for name, source in hf_layout(config, names).items()} == {
        name: name for name in names
    }


def test_the_model_that_was_saved_is_the_one_that_is_read(tmp_path: Path) -> None:
    save_model("gpt2", tmp_path)
    before = open_checkpoint(tmp_path).fingerprint()
    assert open_checkpoint(tmp_path).fingerprint() == before
    rewrite(tmp_path, lambda t: t | {"transformer.wpe.weight": t["transformer.wpe.weight"] + 1})
    assert open_checkpoint(tmp_path).fingerprint() != before
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.model_type == "gpt2"
