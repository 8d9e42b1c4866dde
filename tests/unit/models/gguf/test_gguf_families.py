"""Every family in GGUF: configuration and weights of the Hugging Face model it came from."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import FAMILIES, family_config, write_family
from model_files import llama_cpp_order, random_weights
from tiny import new_sequence

from outpace.errors import ModelError
from outpace.models.config import LayerKind, ModelConfig
from outpace.models.decoder import Decoder
from outpace.models.gguf.layouts import gguf_layout
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors
from outpace.runner import Runner


def logits(decoder: Decoder) -> torch.Tensor:
    """Those after a text longer than every window of these models."""
    runner = Runner(decoder, decoder.new_cache(num_rows=1, capacity=64))
    sequence = new_sequence([(7 * place) % 250 for place in range(40)])
    runner.open(sequence)
    return runner.extend([sequence]).logits


def assert_same(found: ModelConfig, expected: ModelConfig) -> None:
    """Equal in every field, frequencies to the precision in which files keep their factors."""
    assert found.num_hidden_layers == expected.num_hidden_layers
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        assert ours.window == theirs.window
        assert (ours.rope is None) == (theirs.rope is None)
        if ours.rope is not None and theirs.rope is not None:
            assert ours.rope.frequencies == pytest.approx(theirs.rope.frequencies, rel=3e-7)
            assert ours.rope.attention_factor == pytest.approx(theirs.rope.attention_factor, 3e-7)
    for field in fields(ModelConfig):
        if field.name != "layers":
            assert getattr(found, field.name) == getattr(expected, field.name), field.name


@pytest.mark.parametrize("family", FAMILIES)
def test_configuration_and_weights_come_back(tmp_path: Path, family: str) -> None:
    config = family_config(family)
    weights = random_weights(config)
    checkpoint = open_checkpoint(write_family(tmp_path / "tiny.gguf", family, weights))
    check_tensors(checkpoint)
    hf_type = FAMILIES[family][1]
    architecture = "llama" if hf_type == "mistral" else hf_type
    expected = replace(
        config, norm_offset=0.0, architecture=architecture, name=str(checkpoint.path)
    )
    assert_same(checkpoint.config, expected)
    assert checkpoint.names() == set(weights)
    for name, tensor in weights.items():
        offset = config.norm_offset if "norm" in name else 0.0
        assert checkpoint.shape(name) == tensor.shape
        assert torch.equal(checkpoint.load(name), tensor + offset), name


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_original(tmp_path: Path, family: str) -> None:
    config = family_config(family)
    weights = {name: 0.1 * tensor for name, tensor in random_weights(config).items()}
    checkpoint = open_checkpoint(write_family(tmp_path / "tiny.gguf", family, weights))
    original = Decoder(config, weights.__getitem__, dtype=torch.float64)
    loaded = Decoder(checkpoint.config, checkpoint.load, dtype=torch.float64)
    torch.testing.assert_close(logits(loaded), logits(original), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q6_K])
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_k_quants_of_a_family_load(tmp_path: Path, family: str, kind: Kind) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
    }
    path = write_family(tmp_path / "tiny.gguf", family, kind=kind, **sizes)
    checkpoint = open_checkpoint(path)
    check_tensors(checkpoint)
    assert checkpoint.stored_dtype == kind.name
    found = logits(Decoder(checkpoint.config, checkpoint.load, dtype=torch.float32))
    assert bool(torch.isfinite(found).all())
    assert float(found.std()) > 0


def test_layers_without_rotation_or_with_a_window(tmp_path: Path) -> None:
    def layers(family: str) -> tuple[LayerKind, ...]:
        return open_checkpoint(write_family(tmp_path / f"{family}.gguf", family)).config.layers

    assert [kind.rope is None for kind in layers("smollm3")] == [False, False, False, True]
    assert [kind.window for kind in layers("gemma2")] == [16, None, 16, None]
    gemma3 = layers("gemma3")
    assert [kind.window for kind in gemma3] == [16] * 5 + [None, 16]
    assert gemma3[0].rope != gemma3[5].rope
    assert {kind.window for kind in layers("phi3")} == {17}


@pytest.mark.parametrize("number", ["9" * 5000, "00", "1_0", "\u0661"], ids=lambda text: text[:3])
def test_layer_numbers_of_tensors_are_plain_and_short(number: str) -> None:
    config = family_config("llama")
    strange = f"blk.{number}.attn_q.weight"
    layout = gguf_layout(config, "llama", [strange, "blk.10.attn_q.weight"])
    assert set(layout) == {strange, "model.layers.10.self_attn.q_proj.weight"}
    assert layout[strange].stored == strange


def test_tensors_that_are_there_twice_or_cannot_be_cut() -> None:
    config = family_config("llama")
    both = ["blk.0.attn_q.weight", "blk.0.attn_qkv.weight"]
    with pytest.raises(ModelError, match=r"attn_q.weight and blk.0.attn_qkv.weight both hold"):
        gguf_layout(config, "llama", both)
    fused = gguf_layout(config, "llama", both[1:])["model.layers.0.self_attn.k_proj.weight"]
    assert fused.shape((128, 64)) == (32, 64)
    with pytest.raises(ModelError, match=r"has 127 rows, expected 128"):
        fused.shape((127, 64))
    alone = gguf_layout(config, "llama", both[:1])["model.layers.0.self_attn.q_proj.weight"]
    with pytest.raises(ModelError, match=r"blk.0.attn_q.weight has 63 rows.* into 4 heads"):
        alone.shape((63, 64))


def test_fused_rows_of_llama_are_put_back_in_order_too() -> None:
    config = family_config("llama")
    layout = gguf_layout(config, "llama", ["blk.0.attn_qkv.weight"])
    query, key, value = (torch.randn(rows, 64) for rows in (64, 32, 32))
    stored = torch.cat([llama_cpp_order(query, 4), llama_cpp_order(key, 2), value])
    for name, expected in {"q": query, "k": key, "v": value}.items():
        part = layout[f"model.layers.0.self_attn.{name}_proj.weight"].part
        assert part is not None
        assert torch.equal(part(stored), expected)


def test_fused_tensors_may_be_asked_for_in_any_order(tmp_path: Path) -> None:
    config = family_config("phi3")
    weights = random_weights(config)
    checkpoint = open_checkpoint(write_family(tmp_path / "tiny.gguf", "phi3", weights))
    for name in [*sorted(weights), *sorted(weights, reverse=True)]:
        checkpoint.load(name).zero_()
    for name, tensor in weights.items():
        assert torch.equal(checkpoint.load(name), tensor)
