"""AWQ and GPTQ: every weight equals the naive definition, and the model is the quantised model.

What is refused is tested in test_quantised_refused.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import CONFIG, write_hf
from packing import (
    Quantised,
    awq_config,
    generator,
    gptq_config,
    opened,
    pack_awq,
    pack_gptq,
    quantised,
)
from safetensors.torch import load_file, save_file
from tiny import fresh_logits
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from outpace.errors import ModelError
from outpace.models.load import load_model
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors

# float32 sums of up to a hundred terms, in another order, over two layers.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


# --- single projections -----------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [8, 16, -1])
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.bfloat16])
def test_awq_weights(tmp_path: Path, group_size: int, scale_dtype: torch.dtype) -> None:
    weight = torch.randn(24, 32, generator=generator())
    packed = quantised(
        weight, bits=4, group_size=group_size, generator=generator(), scale_dtype=scale_dtype
    )
    files = opened(tmp_path, pack_awq("x", packed), awq_config(group_size), y=torch.ones(3))
    assert files.names() == {"x.weight", "y"}
    assert files.shape("x.weight") == (24, 32)
    assert files.dtype("x.weight") == "AWQ int4"
    assert torch.equal(files.load("x.weight"), packed.weight())
    assert files.load("x.weight").dtype == torch.float32
    assert files.load("x.weight").is_contiguous()
    assert torch.equal(files.load("y"), torch.ones(3))
    assert (files.load("x.weight") - weight).abs().max() < weight.abs().max()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [8, 12, -1])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("stored", ["gptq", "gptq_v2"])
def test_gptq_weights(
    tmp_path: Path, bits: int, group_size: int, act_order: bool, stored: str
) -> None:
    weight = torch.randn(16, 32, generator=generator())
    packed = quantised(
        weight, bits=bits, group_size=group_size, generator=generator(), act_order=act_order
    )
    tensors = pack_gptq("a.b", packed, bits, less_one=stored == "gptq")
    config = gptq_config(bits, group_size, checkpoint_format=stored, desc_act=act_order)
    files = opened(tmp_path, tensors, config)
    assert files.names() == {"a.b.weight"}
    assert files.shape("a.b.weight") == (16, 32)
    assert files.dtype("a.b.weight") == f"GPTQ int{bits}"
    assert torch.equal(files.load("a.b.weight"), packed.weight())


def test_gptq_without_an_index_of_groups(tmp_path: Path) -> None:
    packed = quantised(torch.randn(16, 32), bits=4, group_size=8, generator=generator())
    files = opened(tmp_path, pack_gptq("x", packed, 4, with_index=False), gptq_config(4, 8))
    assert torch.equal(files.load("x.weight"), packed.weight())


def test_symmetric_gptq(tmp_path: Path) -> None:
    packed = quantised(
        torch.randn(16, 32), bits=4, group_size=8, generator=generator(), symmetric=True
    )
    tensors = pack_gptq("x", packed, 4)
    assert set(tensors["x.qzeros"].flatten().tolist()) == {0x77777777}
    files = opened(tmp_path, tensors, gptq_config(4, 8, sym=True))
    assert torch.equal(files.load("x.weight"), packed.weight())


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_of_zero(tmp_path: Path, bits: int) -> None:
    """Stored less one they borrow from their neighbour, which only some tools know to give back."""
    packed = quantised(torch.randn(16, 32), bits=bits, group_size=8, generator=generator())
    zeros = [[0 if (g + o) % 3 else 2 for o in range(16)] for g in range(4)]
    packed = Quantised(packed.integers, zeros, packed.scales, packed.groups)
    config = gptq_config(bits, 8, checkpoint_format="gptq_v2")
    files = opened(tmp_path, pack_gptq("x", packed, bits, less_one=False), config)
    assert torch.equal(files.load("x.weight"), packed.weight())
    config = gptq_config(bits, 8, meta={"quantizer": ["gptqmodel:1.4.0"]})
    files = opened(tmp_path, pack_gptq("x", packed, bits), config)
    assert torch.equal(files.load("x.weight"), packed.weight())
    files = opened(tmp_path, pack_gptq("x", packed, bits), gptq_config(bits, 8))
    with pytest.raises(ModelError, match=r"x \(GPTQ int\d\) has zero points of 0, which the form"):
        files.load("x.weight")


def test_a_wrong_order_would_be_seen(tmp_path: Path) -> None:
    """The same words read as the other method, or the other format, give another weight."""
    packed = quantised(torch.randn(32, 32), bits=4, group_size=8, generator=generator())
    tensors = pack_gptq("x", packed, 4, with_index=False)
    swapped = tensors | {"x.qweight": tensors["x.qweight"].T.contiguous()}
    files = opened(tmp_path, swapped, awq_config(8))
    assert files.load("x.weight").shape == packed.weight().shape
    assert not torch.equal(files.load("x.weight"), packed.weight())
    files = opened(tmp_path, tensors, gptq_config(4, 8, checkpoint_format="gptq_v2"))
    assert not torch.equal(files.load("x.weight"), packed.weight())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["awq", "gptq", "gptq_v2"]),
    bits=st.sampled_from([4, 8]),
    num_inputs=st.sampled_from([8, 24, 32, 40]),
    num_outputs=st.sampled_from([8, 16, 40]),
    group_size=st.sampled_from([-1, 4, 8, 16, 100]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_projection(
    tmp_path: Path,
    method: str,
    bits: int,
    num_inputs: int,
    num_outputs: int,
    group_size: int,
    seed: int,
) -> None:
    bits = 4 if method == "awq" else bits
    random = generator(seed)
    packed = quantised(
        torch.randn(num_outputs, num_inputs, generator=random),
        bits=bits,
        group_size=group_size,
        generator=random,
        act_order=method != "awq" and seed % 2 == 0,
    )
    if method == "awq":
        files = opened(tmp_path, pack_awq("x", packed), awq_config(group_size))
    else:
        tensors = pack_gptq("x", packed, bits, less_one=method == "gptq")
        files = opened(tmp_path, tensors, gptq_config(bits, group_size, checkpoint_format=method))
    assert torch.equal(files.load("x.weight"), packed.weight())


# --- whole models -----------------------------------------------------------------------------


def write_model(
    path: Path, method: str, bits: int, *, keep: tuple[str, ...] = ()
) -> tuple[Path, LlamaForCausalLM]:
    """A tiny Llama saved by transformers and quantised in `packed`; returned as it was before.

    `plain` holds the weights that the quantised ones stand for.
    keep: parts of the names of projections that stay as they are.
    """
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, initializer_range=0.1))
    model.save_pretrained(path / "plain")
    write_hf(path / "packed")
    stored = load_file(path / "plain" / "model.safetensors")
    plain = dict(stored)
    for name in sorted(stored):
        stem = name.removesuffix(".weight")
        if not stem.endswith("_proj") or any(part in stem for part in keep):
            continue
        act_order = method == "gptq" and ".mlp." in stem
        packed = quantised(
            stored.pop(name),
            bits=bits,
            group_size=16,
            generator=generator(len(stored)),
            act_order=act_order,
        )
        plain[name] = packed.weight()
        stored |= pack_awq(stem, packed) if method == "awq" else pack_gptq(stem, packed, bits)
    save_file(plain, path / "plain" / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, path / "packed" / "model.safetensors")
    announced = awq_config(16) if method == "awq" else gptq_config(bits, 16, desc_act=True)
    if keep:
        announced["quantization_config"]["modules_to_not_convert"] = list(keep)
    values = json.loads((path / "plain" / "config.json").read_text()) | announced
    (path / "packed" / "config.json").write_text(json.dumps(values))
    return path / "packed", model.eval()


@pytest.mark.parametrize(("method", "bits"), [("awq", 4), ("gptq", 4), ("gptq", 8)])
def test_a_quantised_model_is_the_model_of_its_dequantised_weights(
    tmp_path: Path, method: str, bits: int
) -> None:
    path, original = write_model(tmp_path, method, bits)
    loaded = load_model(path, dtype="float32", device="cpu")
    checkpoint = open_checkpoint(path)
    assert checkpoint.stored_dtype == f"{method.upper()} int{bits}"
    reference = LlamaForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32).eval()
    tokens = torch.randint(0, CONFIG["vocab_size"], (12,), generator=generator())
    with torch.no_grad():
        expected = reference(tokens[None]).logits[0]
    for length in (1, 5, 12):
        found = fresh_logits(loaded, tokens[:length].tolist())[: CONFIG["vocab_size"]]
        assert torch.allclose(found, expected[length - 1, : len(found)], **CLOSE)
    assert not torch.allclose(original(tokens[None]).logits[0], expected, atol=1e-2)
    for name in checkpoint.names():
        assert torch.equal(checkpoint.load(name), reference.state_dict()[name])


def test_fused_projections_are_cut_after_they_are_dequantised(tmp_path: Path) -> None:
    """Phi-3 stores q, k and v as one projection, gate and up as another."""
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=CONFIG["vocab_size"],
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    path, twin = tmp_path / "packed", tmp_path / "plain"
    for folder in (path, twin):
        Phi3ForCausalLM(config).save_pretrained(folder)
    stored = load_file(path / "model.safetensors")
    plain = dict(stored)
    for name in [name for name in stored if name.endswith(("qkv_proj.weight", "up_proj.weight"))]:
        packed = quantised(stored.pop(name), bits=4, group_size=8, generator=generator())
        plain[name] = packed.weight()
        stored |= pack_awq(name.removesuffix(".weight"), packed)
    save_file(stored, path / "model.safetensors")
    save_file(plain, twin / "model.safetensors")
    values = json.loads((path / "config.json").read_text()) | awq_config(8)
    (path / "config.json").write_text(json.dumps(values))
    checkpoint, expected = open_checkpoint(path), open_checkpoint(twin)
    check_tensors(checkpoint)
    assert checkpoint.dtype("model.layers.0.self_attn.k_proj.weight") == "AWQ int4"
    assert checkpoint.names() == expected.names()
    for name in expected.names():
        assert torch.equal(checkpoint.load(name), expected.load(name))


def test_modules_that_are_not_quantised(tmp_path: Path) -> None:
    path, _ = write_model(tmp_path, "awq", 4, keep=("down_proj", "layers.1.self_attn"))
    checkpoint = open_checkpoint(path)
    check_tensors(checkpoint)
    kinds = {name: checkpoint.dtype(name) for name in checkpoint.names()}
    assert kinds["model.layers.0.self_attn.q_proj.weight"] == "AWQ int4"
    assert kinds["model.layers.1.self_attn.q_proj.weight"] == "float32"
    assert kinds["model.layers.0.mlp.down_proj.weight"] == "float32"
    values = json.loads((path / "config.json").read_text())
    for harmless in ("mlp.down", "down", "lm_head"):
        values["quantization_config"]["modules_to_not_convert"] = [harmless]
        (path / "config.json").write_text(json.dumps(values))
        check_tensors(open_checkpoint(path))
    values["quantization_config"]["modules_to_not_convert"] = ["mlp"]
    (path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=r"mlp.\w+_proj .*but modules_to_not_convert lists 'mlp'"):
        open_checkpoint(path)


def test_the_fingerprint_follows_every_part(tmp_path: Path) -> None:
    path, _ = write_model(tmp_path, "gptq", 4)
    stored = load_file(path / "model.safetensors")
    prints = {open_checkpoint(path).fingerprint()}
    stem = "model.layers.0.mlp.up_proj"
    for kind in ("qweight", "qzeros", "scales", "g_idx"):
        changed = stored[f"{stem}.{kind}"].clone()
        changed[0] += 1
        save_file(stored | {f"{stem}.{kind}": changed}, path / "model.safetensors")
        prints.add(open_checkpoint(path).fingerprint())
    assert len(prints) == 5


def test_biases_of_zero_are_no_biases(tmp_path: Path) -> None:
    """Older tools wrote one for every projection they quantised."""
    path, _ = write_model(tmp_path, "gptq", 4)
    stored = load_file(path / "model.safetensors")
    bias = {f"model.layers.{layer}.mlp.up_proj.bias": torch.zeros(96) for layer in range(2)}
    save_file(stored | bias, path / "model.safetensors")
    check_tensors(open_checkpoint(path))
    bias["model.layers.1.mlp.up_proj.bias"][95] = 1e-8
    save_file(stored | bias, path / "model.safetensors")
    with pytest.raises(ModelError, match=r"does not use: model.layers.1.mlp.up_proj.bias$"):
        check_tensors(open_checkpoint(path))
