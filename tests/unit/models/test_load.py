"""From names of dtypes, devices and models to what runs, or to an error that says what to do."""

from __future__ import annotations

import pytest
import torch
from model_files import write_gguf, write_hf
from tiny import tiny_model

from outpace.errors import ModelError, OptionError
from outpace.models import load
from outpace.models.attention import padded_capacity
from outpace.models.load import (
    DTYPES,
    has_native_bfloat16,
    load_model,
    resolve_device,
    resolve_dtype,
)

CPU = torch.device("cpu")


class TestDtype:
    @pytest.mark.parametrize("name", DTYPES)
    def test_names(self, name):
        assert resolve_dtype(name, CPU) == getattr(torch, name)

    @pytest.mark.parametrize("name", ["", "half", "fp16", "Float32", "int8", "torch.float32"])
    def test_an_unknown_name_is_refused_with_the_known_ones(self, name):
        with pytest.raises(OptionError) as caught:
            resolve_dtype(name, CPU)
        message = str(caught.value)
        assert repr(name) in message
        for known in ("auto", *DTYPES):
            assert known in message

    @pytest.mark.parametrize("value", [None, [], {}, 32, torch.float32])
    def test_what_is_no_name_is_refused(self, value):
        with pytest.raises(OptionError, match="dtype must be auto"):
            resolve_dtype(value, CPU)

    @pytest.mark.parametrize(("native", "wanted"), [(True, "bfloat16"), (False, "float32")])
    def test_auto_takes_bfloat16_where_it_is_native(self, monkeypatch, native, wanted):
        monkeypatch.setattr(load, "has_native_bfloat16", lambda device: native)
        assert resolve_dtype("auto", CPU) == DTYPES[wanted]

    @pytest.mark.parametrize("supported", [True, False])
    def test_native_bfloat16_of_a_cpu_is_its_instruction_set(self, monkeypatch, supported):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
        assert has_native_bfloat16(CPU) is supported

    def test_other_devices_have_no_native_bfloat16(self):
        assert not has_native_bfloat16(torch.device("meta"))


class TestDevice:
    @pytest.mark.parametrize("available", [True, False])
    def test_auto_takes_a_gpu_where_there_is_one(self, monkeypatch, available):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
        assert resolve_device("auto").type == ("cuda" if available else "cpu")

    def test_cpu(self):
        assert resolve_device("cpu") == CPU

    @pytest.mark.parametrize("name", ["gpu", "", "cpu:x", "tpu", "cuda:-2"])
    def test_an_unknown_name_is_refused(self, name):
        with pytest.raises(OptionError, match="cannot be used here") as caught:
            resolve_device(name)
        assert repr(name) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_device_that_cannot_compute_is_refused(self):
        with pytest.raises(OptionError, match="'meta' cannot be used here"):
            resolve_device("meta")

    @pytest.mark.parametrize("value", [None, [], 0, b"cpu"])
    def test_what_is_no_name_is_refused(self, value):
        with pytest.raises(OptionError, match="device must be a name such as"):
            resolve_device(value)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
    def test_a_device_that_is_not_there_is_refused(self):
        with pytest.raises(OptionError, match="'cuda' cannot be used here"):
            resolve_device("cuda")


class TestLoadModel:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_loads_in_the_dtype_asked_for(self, tmp_path, dtype):
        if dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            pytest.skip("this CPU has no bfloat16 kernels")
        path = write_gguf(tmp_path / "model.gguf")
        model = load_model(path, dtype=dtype, device="cpu", model_impl="torch")
        assert model.dtype == dtype
        assert model.decoder.dtype == DTYPES[dtype]
        # The file's last vocabulary row is padding: no token, no logit.
        assert model.decoder.num_logits == model.tokenizer.vocab_size == 263
        assert model.config.vocab_size == 264
        assert len(model.fingerprint) == 64

    def test_the_fingerprint_is_that_of_the_files_not_of_the_dtype(self, tmp_path):
        path = write_gguf(tmp_path / "model.gguf")
        models = [load_model(path, dtype=dtype, device="cpu") for dtype in ("float32", "float64")]
        assert models[0].fingerprint == models[1].fingerprint
        assert models[0].name == str(path)

    def test_options_are_checked_before_the_model_is_looked_for(self, tmp_path):
        with pytest.raises(OptionError, match="dtype"):
            load_model(tmp_path / "absent.gguf", dtype="int3")
        with pytest.raises(OptionError, match="device"):
            load_model(tmp_path / "absent.gguf", device="abacus")

    def test_a_path_that_is_not_there(self, tmp_path):
        with pytest.raises(ModelError, match=r"absent\.gguf"):
            load_model(tmp_path / "absent.gguf", dtype="float32", device="cpu")

    @pytest.mark.parametrize("num_rows", [526, 527])
    def test_a_tokenizer_of_another_model(self, tmp_path, num_rows):
        """It knows 263 tokens: half of the rows is enough, less is not."""
        path = write_hf(tmp_path, config={"vocab_size": num_rows})
        if num_rows == 526:
            assert load_model(path, dtype="float32", device="cpu").decoder.num_logits == 263
            return
        with pytest.raises(ModelError, match="knows 263 tokens, but the model has 527"):
            load_model(path, dtype="float32", device="cpu")


class TestCacheSize:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("num_tokens", [1, 64, 65, 200, 1000])
    def test_announced_bytes_are_what_a_cache_takes(self, dtype, num_tokens):
        model = tiny_model(dtype=dtype, num_layers=3)
        cache = model.new_cache(num_rows=2, num_tokens=num_tokens)
        assert cache.capacity == padded_capacity(num_tokens) >= num_tokens
        assert cache.num_bytes == model.kv_bytes(num_rows=2, num_tokens=num_tokens)
        # 2 x layers x kv_heads x head_dim x tokens x bytes x rows
        expected = 2 * 3 * 2 * 8 * cache.capacity * model.decoder.dtype.itemsize * 2
        assert cache.num_bytes == expected
