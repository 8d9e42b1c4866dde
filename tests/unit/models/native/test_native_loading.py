"""Which models the native step runs, in which formats, and how it is asked for or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import FAMILIES, family_config, write_family
from model_files import write_gguf, write_hf
from native_models import loaded, odd_config, odd_model, usable_paths
from plain import plain_llm
from tiny import feed, tiny_model

from outpace.engine.setup import EngineOptions
from outpace.errors import ModelError, OptionError
from outpace.models.gguf.quants import dequantise
from outpace.models.load import MODEL_IMPLS, LoadedModel, load_model
from outpace.models.native.decoder import NativeDecoder, native_decoder
from outpace.models.native.formats import NativeOptions
from outpace.models.native.support import why_not
from outpace.models.native.weights import RUN, check_stored, plan_matrices
from outpace.models.open import open_checkpoint
from outpace.native.interface import WeightFormat
from outpace.native.library import PATH_VARIABLE

CPU: dict[str, Any] = {"device": "cpu"}
needs_library = pytest.mark.skipif(not usable_paths(), reason="the native library is not built")


def formats_of(path: Path, dtype: str = "auto") -> dict[str, WeightFormat]:
    checkpoint = open_checkpoint(path)
    return {m.name: m.weight_format for m in plan_matrices(checkpoint.config, checkpoint, dtype)}


class TestFormats:
    @pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
    @pytest.mark.parametrize("family", ["llama", "phi3", "gpt2", "gptneox", "gemma2", "smollm3"])
    def test_packed_rows_are_the_rows_of_the_loaded_tensor(self, tmp_path, family, kind) -> None:
        """Fused tensors are cut, and rows put back in order, in the stored bytes too."""
        path = write_family(tmp_path / "model.gguf", family, kind=kind)
        checkpoint = open_checkpoint(path)
        num_compared = 0
        for name in checkpoint.names():
            if checkpoint.dtype(name) == kind.name:
                assert checkpoint.has_blocks(name)
                rows = checkpoint.blocks(name)
                values = dequantise(kind.name, rows.reshape(-1)).reshape(len(rows), -1)
                assert np.array_equal(values, checkpoint.load(name).numpy())
                num_compared += 1
        assert num_compared >= 4 * checkpoint.config.num_hidden_layers

    @pytest.mark.parametrize(
        ("kind", "kept"),
        [
            (Kind.Q4_0, WeightFormat.Q4_0),
            (Kind.Q4_1, WeightFormat.Q4_1),
            (Kind.Q8_0, WeightFormat.Q8_0),
            (Kind.F32, WeightFormat.BF16),
            (Kind.F16, WeightFormat.BF16),
            (Kind.Q5_1, WeightFormat.BF16),
        ],
    )
    def test_auto_keeps_packed_formats_and_takes_bfloat16_for_the_rest(
        self, tmp_path, kind, kept
    ) -> None:
        path = write_gguf(tmp_path / "model.gguf", kind=kind)
        assert set(formats_of(path).values()) == {kept}
        for dtype, expected in (("float32", WeightFormat.F32), ("bfloat16", WeightFormat.BF16)):
            assert set(formats_of(path, dtype).values()) == {expected}

    def test_hugging_face_directories_are_bfloat16(self, tmp_path) -> None:
        assert set(formats_of(write_hf(tmp_path)).values()) == {WeightFormat.BF16}

    def test_parts_in_different_formats_are_bfloat16(self, monkeypatch) -> None:
        class Source:
            def dtype(self, name: str) -> str:
                return "Q8_0" if "v_proj" in name or "layers.1.mlp.up" in name else "Q4_1"

            def has_blocks(self, name: str) -> bool:
                return "layers.1.mlp.down" not in name

        source: Any = Source()
        found = {m.name: m.weight_format for m in plan_matrices(odd_config(), source, "auto")}
        assert found["layers.0.qkv"] == found["layers.1.qkv"] == WeightFormat.BF16
        assert found["layers.0.up"] == found["layers.0.o"] == WeightFormat.Q4_1
        assert found["layers.1.up"] == WeightFormat.BF16
        # Rows that cannot be taken out of the file as they are.
        assert found["layers.1.down"] == WeightFormat.BF16

    def test_gate_and_up_alternate_in_whole_runs(self) -> None:
        config = odd_config(intermediate_size=50)
        matrices = {m.name: m for m in plan_matrices(config, Any, "float32")}  # type: ignore[arg-type]
        assert matrices["layers.0.up"].rows == (64, 64)
        assert matrices["layers.0.down"].in_ == 50
        assert matrices["layers.0.qkv"].rows == (8 * 20, 2 * 20, 2 * 20)
        assert 64 % RUN == 0

    def test_every_family_is_planned_completely(self) -> None:
        """Each matrix of the configuration is part of exactly one matrix of the native step."""
        from outpace.models.tensors import expected_shapes

        for family in FAMILIES:
            config = family_config(family)
            parts = [p for m in plan_matrices(config, Any, "float32") for p in m.parts]  # type: ignore[arg-type]
            matrices = {n for n, shape in expected_shapes(config).items() if len(shape) == 2}
            assert sorted(parts) == sorted(matrices - {"model.embed_positions.weight"})


@needs_library
class TestKinds:
    """Quantised GGUF files against our decoder in torch on the dequantised weights."""

    @pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q5_0, Kind.F16])
    @pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "phi3"])
    def test_logits(self, tmp_path, family, kind) -> None:
        path = write_family(tmp_path / "model.gguf", family, kind=kind)
        options = {"activations": "int16"} if kind.name in ("Q4_0", "Q4_1", "Q8_0") else {}
        native = load_model(path, kv_cache_dtype="float32", **options, **CPU)
        exact = load_model(path, dtype="float64", **CPU)
        peer = load_model(path, dtype="bfloat16", model_impl="torch", **CPU)
        tokens = list(range(3, 40))
        found, expected, others = (
            logits_of(model, tokens).double() for model in (native, exact, peer)
        )
        # Steps of 1/65534 of a block's peak are a hundredth of those of bfloat16.
        bound = 0.1 if options else 1.5
        assert (found - expected).norm() < bound * (others - expected).norm()
        assert native.dtype == (kind.name.lower() if options else "bfloat16")

    def test_the_bound_would_notice_a_row_out_of_order(self, tmp_path) -> None:
        path = write_family(tmp_path / "model.gguf", "llama", kind=Kind.Q4_1)
        checkpoint = open_checkpoint(path)
        blocks = checkpoint.blocks

        def swapped(name: str) -> np.ndarray:
            rows = blocks(name)
            return rows[[1, 0, *range(2, len(rows))]] if "0.self_attn.q_proj" in name else rows

        checkpoint.blocks = swapped  # type: ignore[method-assign]
        wrong = native_decoder(checkpoint.config, checkpoint)
        right = load_model(path, dtype="float64", **CPU)
        tokens = list(range(3, 40))
        expected = logits_of(right, tokens)
        found = feed_all(wrong, tokens).double()[:, : expected.shape[1]]
        assert (found - expected).abs().max() > 1e-2 * expected.abs().max()


def feed_all(decoder: Any, tokens: list[int]) -> torch.Tensor:
    rows = decoder.new_cache(num_rows=1, capacity=256)
    rows.open()
    return feed(decoder, rows, {0: tokens})[0][0]


def logits_of(model: LoadedModel, tokens: list[int]) -> torch.Tensor:
    return feed_all(model.decoder, tokens)


@needs_library
class TestChoice:
    def test_auto_is_the_native_step(self, tmp_path) -> None:
        model = load_model(write_gguf(tmp_path / "model.gguf", kind=Kind.Q4_1), **CPU)
        assert isinstance(model.decoder, NativeDecoder)
        assert (model.model_impl, model.dtype) == ("native", "q4_1")
        assert model.runs_on.startswith("native step (")
        assert "q4_1 weights, int16 activations" in model.runs_on
        assert model.decoder.num_logits == model.tokenizer.vocab_size == 263
        assert model.config.vocab_size == 264

    @pytest.mark.parametrize("dtype", ["float16", "float64"])
    def test_what_it_does_not_compute_in_runs_in_torch(self, tmp_path, dtype) -> None:
        path = write_gguf(tmp_path / "model.gguf")
        model = load_model(path, dtype=dtype, **CPU)
        assert (model.model_impl, model.runs_on, model.dtype) == ("torch", "torch decoder", dtype)
        with pytest.raises(OptionError, match=f"cannot run .*: it does not compute in {dtype}"):
            load_model(path, dtype=dtype, model_impl="native", **CPU)

    def test_torch_by_name(self, tmp_path) -> None:
        path = write_gguf(tmp_path / "model.gguf")
        assert load_model(path, model_impl="torch", **CPU).model_impl == "torch"
        assert load_model(path, model_impl="native", **CPU).model_impl == "native"

    def test_where_the_library_is_off(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv(PATH_VARIABLE, "off")
        path = write_gguf(tmp_path / "model.gguf", kind=Kind.Q8_0)
        assert load_model(path, dtype="float32", **CPU).model_impl == "torch"
        with pytest.raises(OptionError, match=f"{PATH_VARIABLE}=off"):
            load_model(path, model_impl="native", **CPU)
        with pytest.raises(OptionError, match="only the native step does"):
            load_model(path, dtype="q8_0", **CPU)
        with pytest.raises(OptionError, match="kv_cache_dtype='float32' is an option of the"):
            load_model(path, kv_cache_dtype="float32", **CPU)

    def test_a_path_that_cannot_be_had_is_an_error(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv(PATH_VARIABLE, "abacus")
        with pytest.raises(OptionError, match="abacus"):
            load_model(write_gguf(tmp_path / "model.gguf"), **CPU)

    def test_other_devices_run_in_torch(self) -> None:
        assert "CPUs only" in str(why_not("auto", torch.device("meta")))
        assert why_not("auto", torch.device("cpu")) is None


@needs_library
class TestOptions:
    @pytest.fixture
    def path(self, tmp_path) -> Path:
        return write_gguf(tmp_path / "model.gguf", kind=Kind.Q4_1)

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("kv_cache_dtype", ["float16", "fp8", "", None, 3]),
            ("activations", ["int4", "float32", "", None, []]),
            ("dtype", ["q5_0", "Q4_1", "int8"]),
            ("model_impl", ["outpace", "", None]),
        ],
    )
    def test_unknown_values_are_refused_by_name(self, path, name, values) -> None:
        for value in values:
            with pytest.raises(OptionError, match=f"{name} must be") as caught:
                plain_llm(path, **{name: value}, **CPU)
            assert repr(value) in str(caught.value)

    @pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", 1500, 2**31])
    def test_threads_are_a_whole_number(self, path, threads) -> None:
        with pytest.raises(OptionError, match="threads must be a whole number"):
            plain_llm(path, threads=threads, **CPU)

    def test_they_reach_the_step(self, path) -> None:
        before = torch.get_num_threads()
        options = {"threads": 1, "kv_cache_dtype": "float32", "activations": "int8"}
        try:
            with plain_llm(path, **options, **CPU) as llm:
                decoder = llm._target.decoder
                assert torch.get_num_threads() == 1
        finally:
            torch.set_num_threads(before)
        assert (decoder.num_threads, decoder.kv_cache_dtype) == (1, "float32")
        assert decoder.activations == "int8"
        narrow = load_model(path, **CPU)
        sizes = [m.kv_bytes(num_rows=1, num_tokens=512) for m in (narrow, load_model(path, **CPU))]
        assert narrow.decoder.kv_cache_dtype == "bfloat16"
        wide = load_model(path, kv_cache_dtype="float32", **CPU)
        assert wide.kv_bytes(num_rows=1, num_tokens=512) > sizes[0]

    def test_auto_keeps_float32_beside_float32(self, path) -> None:
        assert load_model(path, dtype="float32", **CPU).decoder.kv_cache_dtype == "float32"

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_activations_of_weights_that_are_not_packed(self, path, dtype) -> None:
        with pytest.raises(OptionError, match=f"activations='int8' .* these are {dtype}"):
            load_model(path, dtype=dtype, activations="int8", **CPU)

    @pytest.mark.parametrize("option", ["kv_cache_dtype", "activations"])
    def test_elsewhere_they_are_refused_not_ignored(self, path, tmp_path, option) -> None:
        hf = write_hf(tmp_path / "hf")
        cases = [
            (path, {"model_impl": "torch"}, "model_impl='torch'"),
            (path, {"dtype": "float64"}, "does not compute in float64"),
            (hf, {"model_impl": "transformers"}, "the transformers adapter does"),
        ]
        for name, choice, reason in cases:
            with pytest.raises(OptionError, match=f"{option}='bfloat16' is an option") as caught:
                load_model(name, **choice, **{option: "bfloat16"}, **CPU)
            assert reason in str(caught.value)

    @pytest.mark.parametrize("dtype", ["q4_0", "q8_0"])
    def test_nothing_is_quantised_again(self, path, dtype) -> None:
        with pytest.raises(OptionError, match="is stored as Q4_1, and weights are not quantised"):
            load_model(path, dtype=dtype, **CPU)
        assert load_model(path, dtype="q4_1", **CPU).dtype == "q4_1"

    def test_a_packed_dtype_of_a_directory(self, tmp_path) -> None:
        with pytest.raises(OptionError, match="is stored as float32"):
            load_model(write_hf(tmp_path / "hf"), dtype="q4_1", **CPU)
        check_stored("Q8_0", "auto", "model")

    def test_a_loaded_model_must_agree(self) -> None:
        model = loaded(odd_model("q4_1", "int8", threads=1))
        agreeing = {"dtype": "q4_1", "activations": "int8", "kv_cache_dtype": "bfloat16"}
        plain_llm(model, **agreeing, model_impl="native", threads=1).close()
        for option, value in (
            ("dtype", "bfloat16"),
            ("activations", "int16"),
            ("kv_cache_dtype", "float32"),
            ("model_impl", "torch"),
            ("threads", 2),
        ):
            with pytest.raises(OptionError, match=option):
                plain_llm(model, **{option: value})

    def test_a_loaded_torch_model_refuses_them_too(self) -> None:
        for option in ("activations", "kv_cache_dtype"):
            with pytest.raises(
                OptionError, match=f"{option}='bfloat16' is an option of the native"
            ):
                plain_llm(tiny_model(), **{option: "bfloat16"})

    def test_what_is_said_of_the_target_is_not_asked_of_the_draft(self) -> None:
        options = EngineOptions(
            "q4_1", "cpu", None, 1, None, None, "native", 2, "float32", "int8"
        ).for_draft()
        assert (options.dtype, options.model_impl) == ("auto", "auto")
        assert (options.kv_cache_dtype, options.activations) == ("auto", "auto")
        assert options.threads == 2

    def test_options_are_values(self) -> None:
        assert NativeOptions() == NativeOptions("auto", "auto")
        assert MODEL_IMPLS == ("auto", "native", "torch", "transformers")
        with pytest.raises(OptionError):
            NativeOptions("auto", "int3")


@needs_library
def test_models_may_be_used_from_several_threads() -> None:
    """They take turns; nobody gets another's logits."""
    from concurrent.futures import ThreadPoolExecutor

    from native_models import in_blocks, some_tokens

    decoder = odd_model("bfloat16", threads=2)
    texts = [some_tokens(40, seed=seed) for seed in range(6)]
    alone = [in_blocks(decoder, text, [3]) for text in texts]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda text: in_blocks(decoder, text, [3]), texts))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@needs_library
def test_rotary_tables_grow_with_the_caches_and_keep_their_bits() -> None:
    from native_models import in_blocks, opened, some_tokens

    text = some_tokens(100, seed=1)
    grown, whole = odd_model(), odd_model()
    whole.new_cache(num_rows=1, capacity=256)
    assert grown._num_positions == 0
    small = opened(grown, capacity=20)
    assert grown._num_positions == 20
    in_blocks(grown, text[:20], [20], cache=small)
    found = in_blocks(grown, text, [9], cache=opened(grown, capacity=100))
    opened(grown, capacity=10)
    assert grown._num_positions == 100
    assert torch.equal(found, in_blocks(whole, text, [9]))


@needs_library
def test_announced_bytes_are_what_a_cache_takes() -> None:
    decoder = odd_model("q8_0")
    rows = decoder.new_cache(num_rows=3, capacity=100)
    assert rows.capacity == 100
    assert rows.num_bytes == decoder.kv_bytes(num_rows=3, capacity=100)
    # 2 x layers x kv_heads x head_dim x slots x bytes, at least: heads may be padded.
    assert rows.num_bytes >= 2 * 2 * 2 * 20 * 112 * 2 * 3


def test_an_unknown_model_is_still_a_model_error(tmp_path) -> None:
    with pytest.raises(ModelError, match="absent"):
        load_model(tmp_path / "absent.gguf", **CPU)
