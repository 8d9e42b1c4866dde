"""AWQ and GPTQ: variants, parts and files that are refused, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import CONFIG
from packing import (
    awq_config,
    generator,
    gptq_config,
    int32,
    opened,
    pack_awq,
    pack_gptq,
    quantised,
)
from safetensors.torch import save_file

from outpace.errors import ModelError
from outpace.models.hf import shards
from outpace.models.hf.config import config_from_hf
from outpace.models.hf.quantised import Scheme, dequantised, read_scheme


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantised by 'bitsandbytes'"),
        (
            {"quant_method": "fp8"},
            "quantised by 'fp8' are not read; use the unquantised checkpoint",
        ),
        ({"quant_method": "compressed-tensors"}, "quantised by 'compressed-tensors'"),
        ({"quant_method": "mxfp4"}, "quantised by 'mxfp4' are not read"),
        ({"quant_method": None}, "quantised by None are not read"),
        ({"quant_method": ["awq"]}, r"quantised by \['awq'\] are not read"),
        ({"bits": 3}, "AWQ with bits 3 is not read; supported: 4"),
        ({"bits": 4.0}, "AWQ with bits 4.0 is not read"),
        ({"bits": True}, "AWQ with bits True is not read"),
        ({"version": "gemv"}, "AWQ version 'gemv' is not read; supported: gemm"),
        ({"version": "marlin"}, "AWQ version 'marlin' is not read"),
        ({"version": 3}, "AWQ version 3 is not read"),
        ({"zero_point": False}, "AWQ without zero points"),
        ({"group_size": 0}, "group_size of AWQ must be -1 or positive, got 0"),
        ({"group_size": None}, "group_size of AWQ must be -1 or positive, got None"),
        ({"group_size": 2**40}, "group_size of AWQ must be"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list of names"),
        ({"modules_to_not_convert": [3]}, "modules_to_not_convert must be a list of names"),
    ],
)
def test_awq_variants_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        config_from_hf(CONFIG | awq_config(128, **changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bits": 2}, "GPTQ with bits 2 is not read; supported: 4 and 8"),
        (
            {"checkpoint_format": "marlin"},
            "GPTQ format 'marlin' is not read; supported: gptq, gptq_",
        ),
        ({"checkpoint_format": None}, "GPTQ format None is not read"),
        ({"is_marlin_format": True}, r"Marlin's layout \(is_marlin_format\) is not read"),
        ({"dynamic": {"+:.*up_proj": {"bits": 8}}}, r"other bits for some modules \(dynamic: \+:"),
        ({"dynamic": [1]}, "dynamic must be an object"),
    ],
)
def test_gptq_variants_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        config_from_hf(CONFIG | gptq_config(4, 128, **changes))


def test_other_configurations() -> None:
    assert read_scheme({}) is None
    assert read_scheme({"quantization_config": None}) is None
    assert read_scheme(awq_config(128, version="GEMM")) == Scheme("awq", 4, 128)
    skips = {"dynamic": {"-:.*down_proj": {}}, "checkpoint_format": "gptq_v2"}
    assert read_scheme(gptq_config(8, -1, **skips)) == Scheme("gptq", 8, -1)
    with pytest.raises(ModelError, match=r"compressed-tensors weights \(compression_config\)"):
        read_scheme({"compression_config": {"format": "pack-quantized"}})
    with pytest.raises(ModelError, match="quantization_config must be an object, got 'awq'"):
        read_scheme({"quantization_config": "awq"})
    with pytest.raises(ModelError, match="AWQ weights of gpt2 are not read"):
        read_scheme({"model_type": "gpt2"} | awq_config(128))


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    packed = quantised(torch.randn(16, 32), bits=4, group_size=8, generator=generator())
    return pack_gptq("x", packed, 4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x.qzeros": None}, "missing tensors: x.qzeros"),
        ({"x.scales": None}, "missing tensors: x.scales"),
        ({"x.scales": torch.ones(4, 16).int()}, "x.scales must be a matrix of float64 or .* int32"),
        ({"x.scales": torch.ones(4, 8)}, r"4 groups do not fit scales of shape \(4, 8\)"),
        ({"x.scales": torch.ones(64)}, r"x.scales must be a matrix .*found float32 \(64,\)"),
        ({"x.qzeros": int32([[0, 0]] * 3)}, r"4 groups do not fit qzeros of shape \(3, 2\)"),
        ({"x.qweight": torch.zeros(4, 16)}, "x.qweight must be a matrix of int32, found float32"),
        ({"x.qweight": torch.zeros(0, 16).int()}, "x.qweight must be a matrix of int32"),
        ({"x.qweight": torch.zeros(5, 16).int()}, "5 groups do not fit qzeros"),
        ({"x.g_idx": torch.zeros(31).int()}, r"g_idx must be 32 integers, found int32 \(31,\)"),
        ({"x.g_idx": torch.zeros(32)}, "g_idx must be 32 integers, found float32"),
        ({"x.g_idx": torch.full((32,), 4).int()}, r"g_idx must lie in 0\.\.3"),
        ({"x.g_idx": torch.full((32,), -1).int()}, r"g_idx must lie in 0\.\.3"),
        ({"x.weight": torch.zeros(16, 32)}, "x.weight is stored both quantised and plain"),
    ],
    ids=range(14),
)
def test_parts_that_do_not_fit(
    tmp_path: Path,
    parts: dict[str, torch.Tensor],
    changes: dict[str, torch.Tensor | None],
    reason: str,
) -> None:
    tensors = {name: tensor for name, tensor in (parts | changes).items() if tensor is not None}
    with pytest.raises(ModelError, match=reason):
        opened(tmp_path, tensors, gptq_config(4, 8)).load("x.weight")


def test_awq_knows_no_index_of_groups(tmp_path: Path) -> None:
    packed = quantised(torch.randn(16, 32), bits=4, group_size=8, generator=generator())
    tensors = pack_awq("x", packed) | {"x.g_idx": torch.zeros(32, dtype=torch.int32)}
    with pytest.raises(ModelError, match=r"x .AWQ int4. has a g_idx, which AWQ does not know"):
        opened(tmp_path, tensors, awq_config(8))


def test_packed_weights_and_configuration_must_agree(
    tmp_path: Path, parts: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(ModelError, match=r"x.qweight is quantised, but config.json has no quant"):
        opened(tmp_path, parts, {})
    with pytest.raises(ModelError, match=r"config.json says GPTQ int4, but no tensor is quantised"):
        opened(tmp_path, {"x.weight": torch.zeros(3)}, gptq_config(4, 8))


def test_names_that_are_not_stored(tmp_path: Path, parts: dict[str, torch.Tensor]) -> None:
    files = opened(tmp_path, parts, gptq_config(4, 8))
    for name in ("x.qweight", "y"):
        for read in (files.shape, files.dtype, files.load, lambda name: list(files.samples(name))):
            with pytest.raises(ModelError, match=f"holds no tensor {name}"):
                read(name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *gptq_config(4, 8)["quantization_config"],
        *awq_config(8)["quantization_config"],
        "dynamic",
        "meta",
        "w_bit",
        "q_group_size",
        "is_marlin_format",
    ]
)
VALUES = JSON | st.sampled_from(["awq", "gptq", "gptq_v2", "gemm", 4, 8, -1, 128])


@settings(max_examples=200)
@given(
    start=st.sampled_from([{}, awq_config(8), gptq_config(4, 8)]),
    changes=st.dictionaries(KEYS, VALUES, max_size=4),
    whole=st.none() | JSON,
)
def test_any_configuration_is_read_or_refused(
    start: dict[str, Any], changes: dict[str, Any], whole: Any
) -> None:
    config = start.get("quantization_config", {}) | changes
    for value in (config, whole):
        try:
            scheme = read_scheme({"quantization_config": value}, "name")
        except ModelError as error:
            reason = str(error)
        else:
            reason = "name: "
            assert value is None or scheme is not None
        assert reason.startswith("name: ")
        assert len(reason) < 500


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["awq", "gptq"]),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=3),
    group_size=st.sampled_from([8, -1, 1, 3]),
)
def test_mutated_files_open_or_raise_model_error(
    tmp_path: Path, method: str, changes: list[tuple[int, int]], group_size: int
) -> None:
    path = tmp_path / "model.safetensors"
    packed = quantised(torch.ones(8, 16), bits=4, group_size=8, generator=generator())
    save_file(pack_awq("x", packed) if method == "awq" else pack_gptq("x", packed, 4), path)
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[place % len(content)] = value
    path.write_bytes(content)
    config = awq_config(group_size) if method == "awq" else gptq_config(4, group_size)
    try:
        files = dequantised(shards.open_all(tmp_path), read_scheme(config))
        for name in files.names():
            assert tuple(files.load(name).shape) == files.shape(name)
            assert all(len(sample) <= 256 for sample in files.samples(name))
    except ModelError:
        pass
