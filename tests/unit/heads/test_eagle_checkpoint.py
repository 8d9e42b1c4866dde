"""EAGLE heads on disk: what is written is what is read, and what is not understood is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle_heads import ReferenceHead, draft_vocabulary, head_config, head_weights
from safetensors.torch import load_file, save_file
from tiny import tiny_model

from outpace import LLM
from outpace.errors import ModelError
from outpace.heads import bundled
from outpace.heads.base import EagleRunner
from outpace.heads.binding import Binding
from outpace.heads.checkpoint import read_eagle, write_eagle
from outpace.heads.config import EagleConfig
from outpace.heads.eagle import EagleModule
from outpace.heads.eagle_config import eagle_config_json
from outpace.heads.open import open_eagle
from outpace.heads.target_parts import TargetParts
from outpace.heads.torch_runner import TorchEagle
from outpace.models.attention import KEY_BLOCK, Segment

TARGET = tiny_model(vocab_size=107, hidden_size=32, seed=1)
OTHER = tiny_model(vocab_size=107, hidden_size=32, seed=2)
PARTS = TargetParts(TARGET)
SIZES: dict[str, Any] = {"hidden_size": 32, "target_hidden_size": 32}
CONFIGS = [
    head_config(norm_before_residual=True, **SIZES),
    head_config(fc_norm=True, feature_layers=(0, 2), **SIZES),
    head_config(norm_before_fc=True, norm_output=True, draft_vocab_size=107, **SIZES),
    head_config("eagle", **SIZES),
]


def module_of(config: EagleConfig) -> EagleModule:
    module = EagleModule(config)
    module.load_state_dict(head_weights(config))
    return module.to(torch.bfloat16).float()


def written(directory: Path, config: EagleConfig = CONFIGS[0], **options: Any) -> Path:
    directory.mkdir()
    vocabulary = draft_vocabulary(config)
    write_eagle(directory, module_of(config), vocabulary, PARTS, **options)
    return directory


def first_logits(head: EagleRunner) -> np.ndarray:
    """Of five columns that random features start."""
    config = head.config
    features = np.random.default_rng(0).standard_normal((5, config.feature_size), dtype=np.float32)
    cache = head.new_cache(num_rows=1, capacity=KEY_BLOCK)
    segments = [Segment(0, 0, 5)]
    logits, _ = head.forward(cache, [3, 1, 4, 1, 5], head.fuse(features), segments, range(5))
    return logits


def edit(directory: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    values = json.loads((directory / "config.json").read_text())
    change(values)
    (directory / "config.json").write_text(json.dumps(values))
    return directory


def edit_tensors(directory: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("config", CONFIGS, ids=["residual", "fc_norm", "whole", "eagle"])
def test_what_is_written_is_read(config: EagleConfig, tmp_path: Path) -> None:
    directory = written(tmp_path / "head", config)
    found = read_eagle(directory, PARTS, config.algorithm)
    frequencies = found.config.rope.frequencies
    assert frequencies == pytest.approx(config.rope.frequencies, rel=1e-5)
    assert replace(found.config, rope=config.rope) == config
    assert np.array_equal(found.draft_token_ids, draft_vocabulary(config))
    ours, theirs = module_of(config).state_dict(), found.module(PARTS).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors"]
    opened = first_logits(open_eagle(directory, TARGET, config.algorithm))
    made = first_logits(TorchEagle(config, ours, PARTS, found.draft_token_ids))
    np.testing.assert_allclose(opened, made, atol=1e-5)


def test_an_output_head_can_be_the_targets(tmp_path: Path) -> None:
    directory = written(tmp_path / "head", lm_head="target")
    assert "lm_head.weight" not in load_file(directory / "model.safetensors")
    found = read_eagle(directory, PARTS, "eagle3")
    rows = found.weights(PARTS)["lm_head.weight"].numpy()
    np.testing.assert_array_equal(rows, PARTS.head_rows(draft_vocabulary(CONFIGS[0]).tolist()))


def test_files_of_others_are_read(tmp_path: Path) -> None:
    """Without a binding, with EAGLE's name for the layer, with the target's embedding, and with
    what libraries add to a configuration."""
    directory = written(tmp_path / "head")

    def change(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("layers.0.")]:
            tensors[name.replace("layers.0.", "midlayer.")] = tensors.pop(name)
        tensors["embed_tokens.weight"] = torch.from_numpy(PARTS.embedding_rows(range(107)))

    def add(values: dict[str, Any]) -> None:
        del values["outpace"]
        values |= {"auto_map": {"": "config.Eagle3SpeculatorConfig"}, "transformers_version": "5"}
        values["transformer_layer_config"] |= {
            "attention_dropout": 0.0,
            "use_cache": True,
            "eos_token_id": 2,
            "rope_scaling": None,
            "a_field_that_is_null": None,
        }
        for flag in ("norm_before_fc", "fc_norm", "norm_output", "target_hidden_size"):
            del values[flag]

    edit_tensors(edit(directory, add), change)
    found = read_eagle(directory, PARTS, "eagle3")
    assert found.binding is None
    assert found.embedding is None
    assert replace(found.config, rope=CONFIGS[0].rope) == CONFIGS[0]
    assert torch.equal(
        found.module(PARTS).state_dict()["fc.weight"],
        module_of(CONFIGS[0]).state_dict()["fc.weight"],
    )


def test_a_name_for_the_layer_that_stands_beside_the_other_is_refused(tmp_path: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["midlayer.hidden_norm.weight"] = tensors["layers.0.hidden_norm.weight"].clone()

    directory = edit_tensors(written(tmp_path / "head"), change)
    with pytest.raises(ModelError, match=r"hidden_norm\.weight twice"):
        read_eagle(directory, PARTS, "eagle3")


def test_an_embedding_of_its_own_is_used(tmp_path: Path) -> None:
    embedding = torch.randn(107, 32, generator=torch.Generator().manual_seed(0))

    def change(tensors: dict[str, Any]) -> None:
        tensors["embed_tokens.weight"] = embedding

    directory = written(tmp_path / "head")
    borrowed = first_logits(open_eagle(directory, TARGET, "eagle3"))
    edit_tensors(edit(directory, lambda v: v.update(embed_requires_grad=True)), change)
    found = read_eagle(directory, PARTS, "eagle3")
    assert torch.equal(found.embedding, embedding)
    oracle = ReferenceHead(found.config, found.weights(PARTS), embedding.numpy(), PARTS.final_norm)
    head = open_eagle(directory, TARGET, "eagle3")
    features = np.random.default_rng(0).standard_normal((5, found.config.feature_size))
    features = features.astype(np.float32)
    wanted, _ = oracle.chain([3, 1, 4, 1, 5], oracle.fuse(features))
    cache = head.new_cache(num_rows=1, capacity=KEY_BLOCK)
    logits, _ = head.forward(
        cache, [3, 1, 4, 1, 5], head.fuse(features), [Segment(0, 0, 5)], range(5)
    )
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    assert np.abs(first_logits(head) - borrowed).max() > 0.1
    with pytest.raises(ModelError, match="cannot be trained further"):
        found.module(PARTS)


def test_an_embedding_that_is_the_targets_up_to_rounding_is_borrowed(tmp_path: Path) -> None:
    rows = torch.from_numpy(PARTS.embedding_rows(range(107)))
    noise = torch.randn(107, 32, generator=torch.Generator().manual_seed(0)) * rows.norm(
        dim=1, keepdim=True
    )

    def stored(name: str, apart: float) -> Path:
        change = {"embed_tokens.weight": rows + apart * noise / 32**0.5}
        return edit_tensors(written(tmp_path / name), lambda tensors: tensors.update(change))

    assert read_eagle(stored("rounded", 0.08), PARTS, "eagle3").embedding is None
    assert read_eagle(stored("trained", 0.5), PARTS, "eagle3").embedding is not None


@pytest.mark.parametrize(("num_layers", "layers"), [(8, (2, 4, 5)), (4, None), (2, None)])
def test_layers_that_are_not_stated_are_the_usual_ones(
    num_layers: int, layers: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """Of a target too small to have them, the head is refused."""
    target = TargetParts(tiny_model(vocab_size=107, hidden_size=32, num_layers=num_layers))
    directory = written(tmp_path / "head", head_config(feature_layers=(0, 1, 2), **SIZES))

    def change(values: dict[str, Any]) -> None:
        values["eagle_aux_hidden_state_layer_ids"] = None
        del values["outpace"]

    edit(directory, change)
    if layers is not None:
        assert read_eagle(directory, target, "eagle3").config.feature_layers == layers
    else:
        with pytest.raises(ModelError, match="the file states none"):
            read_eagle(directory, target, "eagle3")


def test_the_verifier_is_named_as_others_name_it(tmp_path: Path) -> None:
    values = json.loads((written(tmp_path / "head") / "config.json").read_text())
    verifier = values["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": TARGET.name, "architectures": ["LlamaForCausalLM"]}
    values = eagle_config_json(
        CONFIGS[0], Binding.to(PARTS), verifier="a/b", verifier_class="Qwen2ForCausalLM"
    )
    verifier = values["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": "a/b", "architectures": ["Qwen2ForCausalLM"]}


def test_of_an_alias_the_verifier_has_its_name_on_the_hub(tmp_path: Path) -> None:
    named = TargetParts(replace(TARGET, name="smollm2-135m"))
    vocabulary = draft_vocabulary(CONFIGS[0])
    write_eagle(tmp_path, module_of(CONFIGS[0]), vocabulary, named)
    values = json.loads((tmp_path / "config.json").read_text())
    verifier = values["speculators_config"]["verifier"]
    assert verifier["name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert values["outpace"]["target_name"] == "smollm2-135m"


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another kind": (lambda v: v.update(speculators_model_type="dflash"), "dflash"),
    "unknown field": (lambda v: v.update(temperature_scaling=2), "temperature_scaling"),
    "a flag that engines guess": (lambda v: v.pop("norm_before_residual"), "must be stated"),
    "a flag that is no flag": (lambda v: v.update(norm_output="yes"), "norm_output"),
    "norms that exclude each other": (
        lambda v: v.update(norm_before_fc=True, fc_norm=True),
        "exclude",
    ),
    "lossy acceptance": (
        lambda v: v["speculators_config"]["proposal_methods"][0].update(accept_tolerance=0.1),
        "lossy",
    ),
    "two layers": (lambda v: v["transformer_layer_config"].update(num_hidden_layers=2), "layers"),
    "qwen": (lambda v: v["transformer_layer_config"].update(model_type="qwen3"), "qwen3"),
    "biases": (lambda v: v["transformer_layer_config"].update(attention_bias=True), "bias"),
    "a layer the target lacks": (
        lambda v: v.update(eagle_aux_hidden_state_layer_ids=[0, 1, 99]),
        "99",
    ),
    "a trained embedding that is not there": (
        lambda v: v.update(embed_requires_grad=True),
        "lacks embed_tokens",
    ),
    "no size of the draft vocabulary": (lambda v: v.pop("draft_vocab_size"), "draft_vocab_size"),
    "a flag of EAGLE-1": (lambda v: v.update(fusion_bias=False), "'fusion_bias' is not known"),
    "an unknown field of the layer": (
        lambda v: v["transformer_layer_config"].update(logit_cap=30.0),
        "transformer_layer_config: 'logit_cap' is not known",
    ),
    "a layer named twice": (
        lambda v: v.update(eagle_aux_hidden_state_layer_ids=[0, 1, 1]),
        "different layers",
    ),
    "a tied output head": (lambda v: v.update(tie_word_embeddings=True), "tie_word_embeddings"),
    "acceptance of the k best": (
        lambda v: v["speculators_config"]["proposal_methods"][0].update(verifier_accept_k=2),
        "lossy",
    ),
    "parallel drafting": (lambda v: v.update(speculators_model_type="peagle"), "'peagle'"),
    "too many draft tokens": (lambda v: v.update(draft_vocab_size=4000), "draft_vocab_size"),
    "another width": (lambda v: v.update(target_hidden_size=64), "target with 64 hidden channels"),
    "a format to come": (lambda v: v["outpace"].update(format=2), "another version"),
    "a damaged binding": (lambda v: v["outpace"].pop("target_name"), "damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_configurations_that_are_refused(case: str, tmp_path: Path) -> None:
    change, words = REFUSED[case]
    directory = edit(written(tmp_path / "head"), change)
    with pytest.raises(ModelError, match=words):
        read_eagle(directory, PARTS, "eagle3")


def swap(tensors: dict[str, Any]) -> None:
    tensors["t2d"][[0, -1]] = ~tensors["t2d"][[0, -1]]


REFUSED_TENSORS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown": (lambda t: t.update(bias=torch.zeros(3)), "unknown tensor bias"),
    "missing": (lambda t: t.pop("fc.weight"), "fc.weight is missing"),
    "shape": (lambda t: t.update({"fc.weight": torch.zeros(3, 4)}), "fc.weight is"),
    "whole numbers": (
        lambda t: t.update({"norm.weight": torch.ones(32, dtype=torch.int32)}),
        "floating point",
    ),
    "order": (lambda t: t["d2t"].__setitem__(0, 90), "ascending"),
    "disagreement": (swap, "disagree"),
    "length": (lambda t: t.update(d2t=torch.zeros(4, dtype=torch.int64)), "43 offsets"),
    "offsets that are rounded": (lambda t: t.update(d2t=t["d2t"].bfloat16()), "whole numbers"),
    "flags that are fractions": (lambda t: t.update(t2d=t["t2d"].bfloat16()), "107 flags"),
    "a vocabulary for half of it": (lambda t: t.pop("t2d"), "t2d is missing"),
    "an embedding of another shape": (
        lambda t: t.update({"embed_tokens.weight": torch.randn(106, 32)}),
        "embed_tokens.weight is",
    ),
}


@pytest.mark.parametrize("case", REFUSED_TENSORS)
def test_tensors_that_are_refused(case: str, tmp_path: Path) -> None:
    change, words = REFUSED_TENSORS[case]
    directory = edit_tensors(written(tmp_path / "head"), change)
    with pytest.raises(ModelError, match=words):
        read_eagle(directory, PARTS, "eagle3")


@pytest.mark.parametrize(
    "flag",
    ["layernorms", "fusion_bias", "norm_before_residual", "norm_before_fc", "fc_norm"],
)
def test_eagle_1_has_none_of_the_flags(flag: str, tmp_path: Path) -> None:
    directory = written(tmp_path / "head", CONFIGS[3])
    assert json.loads((directory / "config.json").read_text())[flag] is False
    read_eagle(edit(directory, lambda values: values.pop(flag)), PARTS, "eagle")
    with pytest.raises(ModelError, match=f"{flag} is true"):
        read_eagle(edit(directory, lambda values: values.update({flag: True})), PARTS, "eagle")


def test_eagle_1_reads_its_target_through_an_rms_norm(tmp_path: Path) -> None:
    target = TargetParts(tiny_model(vocab_size=107, hidden_size=32, norm="layer"))
    for config, name in ((CONFIGS[3], "one"), (CONFIGS[0], "three")):
        directory = written(tmp_path / name, config)
        edit(directory, lambda values: values.pop("outpace"))
    assert read_eagle(tmp_path / "three", target, "eagle3").binding is None
    with pytest.raises(ModelError, match="layer norm"):
        read_eagle(tmp_path / "one", target, "eagle")


def test_a_draft_is_bound_to_its_target(tmp_path: Path) -> None:
    directory = written(tmp_path / "head")
    with pytest.raises(ModelError, match="was trained for tiny") as caught:
        read_eagle(directory, TargetParts(OTHER), "eagle3")
    for fingerprint in (TARGET.fingerprint, OTHER.fingerprint):
        assert fingerprint[:12] in str(caught.value)
    with pytest.raises(ModelError, match="'eagle3', and the method is 'eagle'"):
        read_eagle(directory, PARTS, "eagle")


def test_a_draft_that_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = written(tmp_path / "head")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}

    def full(file: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("outpace.heads.files.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_eagle(directory, EagleModule(CONFIGS[0]), draft_vocabulary(CONFIGS[0]), PARTS)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_half_a_draft_is_refused(missing: str, tmp_path: Path) -> None:
    directory = written(tmp_path / "head")
    (directory / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        read_eagle(directory, PARTS, "eagle3")
    (directory / missing).write_bytes(b"\x07\x00damaged")
    with pytest.raises(ModelError, match=r"damaged|not valid JSON"):
        read_eagle(directory, PARTS, "eagle3")


def test_a_bundled_draft_is_found_by_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled, "DRAFTS", tmp_path)
    with pytest.raises(ModelError, match="outpace train eagle3"):
        open_eagle(None, TARGET, "eagle3")
    written(tmp_path / "tiny-eagle3")
    assert bundled.bundled_draft(PARTS, "eagle3") == tmp_path / "tiny-eagle3"
    assert bundled.bundled_draft(PARTS, "eagle") is None
    assert bundled.bundled_draft(TargetParts(OTHER), "eagle3") is None
    with LLM(TARGET, speculative_config={"method": "eagle3"}) as llm:
        assert llm.generate([{"prompt_token_ids": [1, 2, 3]}])[0].outputs[0].token_ids
