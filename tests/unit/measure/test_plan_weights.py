"""Weights by tensor arithmetic, against numbers worked out by hand and against real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fake_hub import FakeHub, Repo, serving
from huggingface_hub import constants
from model_files import CONFIG, write_gguf, write_hf
from plan_cases import planner, sizes, written

from outpace.errors import ModelError
from outpace.measure.plan.formats import Groups
from outpace.measure.plan.source import read_source
from outpace.models.gguf.file import GGUFFile
from outpace.models.hub.names import resolve
from outpace.models.open import open_checkpoint
from outpace.native.library import status

DEFAULT_MODEL = "smollm2-135m"
# The tiny model of CONFIG; in each of two layers q and o 64 x 64, k and v 32 x 64, three 96 x 64.
MATRICES = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
EMBEDDING = 264 * 64
NORMS = (2 * 2 + 1) * 64


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return written(tmp_path / "tiny")


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_plain_numbers(tiny: str, dtype: str, size: int) -> None:
    found = sizes(planner(tiny, dtype=dtype))
    assert MATRICES == 61_440
    assert found["target: matrices"] == 61_440 * size
    assert found["target: embedding"] == 16_896 * size
    assert found["target: norms and biases"] == 320 * size
    assert "target: output head" not in found


def test_the_same_as_a_real_directory_stores(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m")
    stored = open_checkpoint(path)
    num_bytes = sum(4 * torch.Size(stored.shape(name)).numel() for name in stored.names())
    found = sizes(planner(str(path), dtype="float32"))
    assert sum(size for name, size in found.items() if name in _WEIGHTS) == num_bytes


_WEIGHTS = {f"target: {x}" for x in ("embedding", "matrices", "output head", "norms and biases")}


def test_an_untied_head_is_counted(tmp_path: Path) -> None:
    name = written(tmp_path / "m", tie_word_embeddings=False)
    assert sizes(planner(name))["target: output head"] == EMBEDDING * 2


@pytest.mark.parametrize(("dtype", "block"), [("q4_0", 18), ("q4_1", 20), ("q8_0", 34)])
def test_blocks(tiny: str, dtype: str, block: int) -> None:
    found = sizes(planner(tiny, dtype=dtype))
    assert found["target: matrices"] == 61_440 // 32 * block
    assert found["target: embedding"] == 16_896 // 32 * 34  # q8_0 in all three
    assert found["target: norms and biases"] == 320 * 4


def test_rows_that_blocks_do_not_divide(tmp_path: Path) -> None:
    name = written(tmp_path / "m", intermediate_size=100)
    with pytest.raises(ModelError, match=r"down_proj.* rows of 100 values.*blocks of 32"):
        planner(name, dtype="q4_0")


def test_awq_counts_scales_zeros_and_what_stays_whole(tiny: str) -> None:
    found = sizes(planner(tiny, dtype="awq", group_size=32))
    # q, o: 64 x 64 / 2 + 64 outputs x 2 groups x (2 + 1/2); k, v; gate, up; down has 3 groups.
    layer = 2 * (2048 + 320) + 2 * (1024 + 160) + 2 * (3072 + 480) + (3072 + 480)
    assert found["target: matrices"] == 2 * layer == 35_520
    assert found["target: embedding"] == 16_896 * 2
    assert found["target: norms and biases"] == 320 * 2


def test_gptq_counts_the_group_of_every_input_besides(tiny: str) -> None:
    indices = 2 * (6 * 64 + 96) * 4
    assert sizes(planner(tiny, dtype="gptq", group_size=32))["target: matrices"] == 35_520 + indices


def test_one_group_for_each_row(tiny: str) -> None:
    found = sizes(planner(tiny, dtype="awq", group_size=-1))["target: matrices"]
    outputs = 2 * (64 + 32 + 32 + 64 + 96 + 96 + 64)
    assert found == MATRICES // 2 + outputs * 5 // 2


def test_a_configuration_that_says_how_it_is_quantised(tmp_path: Path) -> None:
    scheme = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    name = written(tmp_path / "m", quantization_config=scheme, torch_dtype="float16")
    asked = planner(name)
    assert sizes(asked)["target: matrices"] == 35_520
    assert any("unpacks" in note for note in asked.plan().notes)
    plain = scheme | {"modules_to_not_convert": ["down_proj"]}
    other = written(tmp_path / "n", quantization_config=plain)
    assert sizes(planner(other))["target: matrices"] == 35_520 + 2 * (64 * 96 * 2 - 3552)


def test_groups_of_eight_bits() -> None:
    # 64 x 64 bytes, 64 outputs x 2 groups x (2 + 1), 64 indices.
    assert Groups("gptq", 8, 32).num_bytes((64, 64)) == 4096 + 384 + 256


def test_a_gguf_file_is_counted_as_it_is_stored(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    stored = GGUFFile(path)
    found = sizes(planner(str(path)))
    weights = sum(size for name, size in found.items() if name in _WEIGHTS)
    assert weights == sum(info.nbytes for info in stored.tensors.values())


@pytest.mark.model
def test_the_default_model_byte_by_byte() -> None:
    path = resolve(DEFAULT_MODEL)
    in_file = sum(info.nbytes for info in GGUFFile(path).tensors.values())
    found = sizes(planner(DEFAULT_MODEL))
    assert sum(found[name] for name in _WEIGHTS if name in found) == in_file == 96_576_768
    # Nothing of the file but its shape: what "q4_1" means is predicted, not read.
    predicted = sizes(planner(DEFAULT_MODEL, dtype="q4_1"))
    assert sum(predicted[name] for name in _WEIGHTS if name in predicted) == in_file


@pytest.mark.model
@pytest.mark.skipif(status().path is None, reason="the native step is not built")
def test_the_native_step_holds_what_is_planned() -> None:
    from outpace.models.native.weights import plan_matrices

    checkpoint = open_checkpoint(resolve(DEFAULT_MODEL))
    for dtype in ("auto", "bfloat16"):
        held = plan_matrices(checkpoint.config, checkpoint, dtype)
        found = sizes(planner(DEFAULT_MODEL, dtype=dtype))
        planned = found["target: embedding"] + found["target: matrices"]
        assert sum(matrix.num_bytes for matrix in held) == planned


def test_names_of_models(tmp_path: Path) -> None:
    directory = written(tmp_path / "m")
    whole, bare = read_source(directory), read_source(f"{directory}/config.json")
    assert whole.config.hidden_size == bare.config.hidden_size == 64
    assert whole.stored.dtype == "bfloat16"
    stated = read_source(written(tmp_path / "n", dtype="float32"))
    assert stated.stored.dtype == "float32"
    with pytest.raises(ModelError, match="no model 'nobody'"):
        read_source("nobody")


def test_of_a_hub_only_the_configuration_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(FakeHub()) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        config = json.dumps(CONFIG).encode()
        hub.repos["org/tiny"] = Repo({"config.json": config, "model.safetensors": b"weights"})
        assert read_source("org/tiny").config.hidden_size == 64
        assert set(hub.downloads()) == {"config.json"}
        with pytest.raises(ModelError, match="org/absent"):
            read_source("org/absent")
    with pytest.raises(ModelError, match="fetched whole"):
        read_source("org/tiny:model.gguf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"model_type": "mamba"}, "recurrent or hybrid layers"),
        ({"model_type": "qwen3_next"}, "cannot be rolled back"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "recurrent or hybrid"),
        ({"model_type": None}, "no model architecture is given"),
        ({"num_experts": 8}, "num_experts"),
        ({"auto_map": {"AutoModel": "own.py"}}, "trust_remote_code"),
    ],
)
def test_what_loading_refuses_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read_source(written(tmp_path / "m", **changes))


def test_a_directory_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"must have config\.json"):
        read_source(str(tmp_path))
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        read_source(str(tmp_path / "damaged.json"))
