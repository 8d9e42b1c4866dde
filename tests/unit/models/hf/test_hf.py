"""Loading a model for the adapter: what is refused before a weight is read, and what it says of
itself once it is loaded."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hf_cases import RUN, VOCAB, write, write_config
from model_files import write_gguf, write_hf
from plain import plain_llm
from safetensors.torch import load_file, save_file

from outpace.engine.setup import EngineOptions
from outpace.errors import ModelError, OptionError
from outpace.models.hf.adapter import _max_len
from outpace.models.load import load_model

CPU = {"dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def olmo2(tmp_path_factory: Any) -> Path:
    return write(tmp_path_factory.mktemp("olmo2"), "olmo2", RUN["olmo2"])


def copy_of(path: Path, to: Path, **changes: Any) -> Path:
    """The same directory with other values in config.json."""
    for file in path.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    values = json.loads((to / "config.json").read_text()) | changes
    (to / "config.json").write_text(json.dumps(values))
    return to


class TestWhoRunsIt:
    def test_auto_takes_the_decoder_where_it_has_the_architecture(self, olmo2, tmp_path):
        llama = write_hf(tmp_path)
        assert load_model(llama, **CPU).model_impl in ("native", "torch")
        assert load_model(olmo2, **CPU).runs_on == "transformers adapter"

    def test_either_can_be_forced(self, olmo2, tmp_path):
        llama = write_hf(tmp_path)
        assert load_model(llama, model_impl="transformers", **CPU).model_impl == "transformers"
        assert load_model(llama, model_impl="torch", **CPU).model_impl == "torch"
        with pytest.raises(ModelError, match="architecture 'olmo2' is not supported"):
            load_model(olmo2, model_impl="torch", **CPU)

    @pytest.mark.parametrize("value", ["vllm", "", None, 1, "Auto"])
    def test_an_unknown_name_is_refused_with_the_known_ones(self, tmp_path, value):
        with pytest.raises(OptionError, match="auto, native, torch, transformers") as caught:
            load_model(tmp_path / "absent", model_impl=value, **CPU)
        assert repr(value) in str(caught.value)

    def test_a_gguf_file_has_no_way_onto_the_adapter(self, tmp_path):
        path = write_gguf(tmp_path / "model.gguf")
        with pytest.raises(ModelError, match="Hugging Face directories, not GGUF files"):
            load_model(path, model_impl="transformers", **CPU)

    def test_a_loaded_model_must_agree(self, olmo2):
        model = load_model(olmo2, **CPU)
        options = {
            "dtype": "auto",
            "device": "auto",
            "max_model_len": None,
            "max_num_seqs": 1,
            "kv_cache_bytes": None,
            "progress": None,
        }
        for agreeing in ("auto", "transformers"):
            assert EngineOptions(**options, model_impl=agreeing).load(model) is model
        with pytest.raises(OptionError, match=r"'torch', but .* transformers adapter"):
            EngineOptions(**options, model_impl="torch").load(model)

    def test_without_transformers_the_error_names_the_extra(self, olmo2, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(ModelError, match=r"pip install 'outpace\[hf\]'"):
            load_model(olmo2, **CPU)


class TestRefusals:
    def test_code_of_its_own(self, olmo2, tmp_path):
        auto_map = {"AutoModelForCausalLM": "modeling_olmo2.Olmo2ForCausalLM"}
        (tmp_path / "modeling_olmo2.py").write_text("raise SystemExit('was executed')")
        path = copy_of(olmo2, tmp_path, auto_map=auto_map)
        with pytest.raises(ModelError, match=r"auto_map.*nobody here has checked"):
            load_model(path, **CPU)

    @pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
    def test_quantised_weights(self, olmo2, tmp_path, key):
        path = copy_of(olmo2, tmp_path, **{key: {"quant_method": "awq"}})
        with pytest.raises(ModelError, match=key):
            load_model(path, **CPU)

    def test_a_draft_head(self, olmo2, tmp_path):
        path = copy_of(olmo2, tmp_path, speculators_model_type="eagle3")
        with pytest.raises(ModelError, match="eagle3 draft head"):
            load_model(path, **CPU)

    def test_a_lora_adapter(self, olmo2, tmp_path):
        path = copy_of(olmo2, tmp_path)
        (path / "adapter_config.json").write_text("{}")
        with pytest.raises(ModelError, match="LoRA"):
            load_model(path, **CPU)

    def test_an_architecture_nobody_knows(self, olmo2, tmp_path):
        path = copy_of(olmo2, tmp_path, model_type="gutenberg")
        with pytest.raises(ModelError, match=r"cannot read its config\.json.*gutenberg"):
            load_model(path, **CPU)

    def test_no_weights(self, tmp_path):
        path = write_config(tmp_path, "olmo2", RUN["olmo2"].fields)
        with pytest.raises(ModelError, match=r"no weights found|cannot load it"):
            load_model(path, **CPU)

    @pytest.mark.parametrize("kind", ["missing", "unexpected", "mismatched"])
    def test_weights_that_do_not_fit(self, olmo2, tmp_path, kind):
        path, name = copy_of(olmo2, tmp_path), "model.layers.1.mlp.up_proj.weight"
        weights = load_file(path / "model.safetensors")
        if kind == "missing":
            del weights[name]
        elif kind == "unexpected":
            name = "model.layers.1.mlp.side_proj.weight"
            weights[name] = torch.ones(3)
        else:
            weights[name] = weights[name][:-1].contiguous()
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError) as caught:
            load_model(path, **CPU)
        assert f"{kind} keys" in str(caught.value)
        assert name in str(caught.value)
        assert str(path) in str(caught.value)

    def test_damaged_weights(self, olmo2, tmp_path):
        path = copy_of(olmo2, tmp_path)
        (path / "model.safetensors").write_bytes(b"not a tensor in sight")
        with pytest.raises(ModelError, match=r"damaged|cannot load it"):
            load_model(path, **CPU)

    def test_a_tokenizer_of_another_model(self, tmp_path):
        case = RUN["gptj"]
        path = write(tmp_path, "gptj", replace(case, fields=case.fields | {"vocab_size": 527}))
        with pytest.raises(ModelError, match="knows 263 tokens, but the model has 527"):
            load_model(path, **CPU)

    def test_more_rows_than_one(self, olmo2):
        model = load_model(olmo2, **CPU)
        with pytest.raises(ModelError, match="one sequence at a time, but a cache for 3"):
            model.new_cache(num_rows=3, num_tokens=32)


class TestWhatItSaysOfItself:
    def test_shape_and_numbers(self, olmo2):
        model = load_model(olmo2, **CPU)
        decoder = model.decoder
        assert (decoder.num_layers, decoder.max_rows) == (2, 1)
        assert (model.max_len, model.dtype) == (160, "float32")
        assert (decoder.num_logits, decoder.vocab_size) == (VOCAB - 1, VOCAB)
        assert decoder.capturable == range(2)
        # 2 x layers x kv_heads x head_dim x bytes
        assert model.kv_bytes(num_rows=1, num_tokens=256) == 2 * 2 * 2 * 8 * 4 * 256
        cache = model.new_cache(num_rows=1, num_tokens=256)
        assert cache.num_bytes == model.kv_bytes(num_rows=1, num_tokens=256)

    def test_the_fingerprint_is_that_of_the_content(self, olmo2, tmp_path):
        key = load_model(olmo2, **CPU).fingerprint
        for folder in ("same", "config", "weights"):
            (tmp_path / folder).mkdir()
        changes = {"transformers_version": "9.0", "_name_or_path": "elsewhere"}
        same = copy_of(olmo2, tmp_path / "same", **changes)
        assert load_model(same, dtype="float64", device="cpu").fingerprint == key
        config = copy_of(olmo2, tmp_path / "config", rms_norm_eps=1e-3)
        weights = copy_of(olmo2, tmp_path / "weights")
        tensors = load_file(weights / "model.safetensors")
        tensors["model.norm.weight"][0] += 1
        save_file(tensors, weights / "model.safetensors", metadata={"format": "pt"})
        keys = {key, *(load_model(path, **CPU).fingerprint for path in (config, weights))}
        assert len(keys) == 3

    def test_the_end_ids_and_the_template_are_the_directorys_own(self, olmo2):
        model = load_model(olmo2, **CPU)
        assert model.tokenizer.end_token_ids == {0}
        assert model.tokenizer.chat_template is not None

    def test_an_unlimited_model_gets_the_default_context(self, tmp_path):
        path = write(tmp_path, "bloom", RUN["bloom"])
        model = load_model(path, **CPU)
        assert model.max_len == 2**31 - 1
        with plain_llm(model) as llm:
            assert llm.max_model_len == 8192


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_seq_len": 100}, 100),
        ({"seq_length": 7}, 7),
        ({"max_position_embeddings": 50, "seq_length": 7}, 50),
        ({"max_position_embeddings": None}, 2**31 - 1),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 512},
            },
            4096,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "original_max_position_embeddings": 512,
                },
            },
            512,
        ),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic"}}, 4096),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "dynamic",
                        "original_max_position_embeddings": 256,
                    },
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            256,
        ),
    ],
)
def test_the_longest_sequence_ends_where_keys_would_have_to_turn(fields, limit):
    assert _max_len(SimpleNamespace(**fields)) == limit
