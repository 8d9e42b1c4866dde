"""PyTorch's pickled weights: tensors come out, nothing is called, everything else is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import CONFIG, random_weights, write_hf
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.errors import ModelError
from outpace.models.hf import shards
from outpace.models.hf.config import config_from_hf
from outpace.models.hf.torch_bin import TorchBinFiles
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors

# The library's own, about what damaged files claim to be.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FILE = "pytorch_model.bin"
WEIGHTS = random_weights(config_from_hf(CONFIG))


def write_bin(path: Path, weights: Any = WEIGHTS, **options: Any) -> Path:
    """A model directory whose only weights are a .bin file."""
    write_hf(path)
    (path / "model.safetensors").unlink()
    torch.save(weights, path / FILE, **options)
    return path


def write_sharded(path: Path, num_shards: int) -> Path:
    write_hf(path)
    (path / "model.safetensors").unlink()
    files = [f"pytorch_model-{i + 1:05}-of-{num_shards:05}.bin" for i in range(num_shards)]
    weight_map = {name: files[i % num_shards] for i, name in enumerate(sorted(WEIGHTS))}
    for file in files:
        torch.save({n: WEIGHTS[n] for n, home in weight_map.items() if home == file}, path / file)
    (path / f"{FILE}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def opened(path: Path, values: Any, **options: Any) -> TorchBinFiles:
    torch.save(values, path / FILE, **options)
    return TorchBinFiles(path, [FILE])


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        TorchBinFiles(path, [FILE])
    return str(caught.value)


# --- what is read -----------------------------------------------------------------------------


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_state_dict_of_transformers(tmp_path: Path, dtype: torch.dtype, new_format: bool) -> None:
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(dtype)
    weights = model.state_dict()
    path = write_bin(tmp_path, weights, _use_new_zipfile_serialization=new_format)
    checkpoint = open_checkpoint(path)
    # The head is tied to the embedding: two names for one storage.
    check_tensors(checkpoint)
    assert checkpoint.names() == set(weights)
    assert checkpoint.stored_dtype == str(dtype).removeprefix("torch.")
    assert checkpoint.files() == [path / FILE]
    for name, weight in weights.items():
        assert checkpoint.dtype(name) == str(dtype).removeprefix("torch.")
        assert checkpoint.shape(name) == tuple(weight.shape)
        assert torch.equal(checkpoint.load(name), weight)


def test_shards(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_sharded(tmp_path, 3))
    check_tensors(checkpoint)
    assert checkpoint.names() == set(WEIGHTS)
    assert all(torch.equal(checkpoint.load(name), WEIGHTS[name]) for name in WEIGHTS)
    assert [file.name for file in checkpoint.files()] == [
        f"pytorch_model-0000{i}-of-00003.bin" for i in (1, 2, 3)
    ]


def test_the_fingerprint_is_that_of_the_same_tensors_in_safetensors(tmp_path: Path) -> None:
    prints = {
        open_checkpoint(path).fingerprint()
        for path in (write_bin(tmp_path / "a"), write_sharded(tmp_path / "b", 2))
    }
    assert prints == {open_checkpoint(write_hf(tmp_path / "c", weights=WEIGHTS)).fingerprint()}
    changed = WEIGHTS | {"model.norm.weight": WEIGHTS["model.norm.weight"] + 1}
    assert open_checkpoint(write_bin(tmp_path / "d", changed)).fingerprint() not in prints


def test_safetensors_win(tmp_path: Path) -> None:
    path = write_hf(tmp_path, weights=WEIGHTS)
    (path / FILE).write_bytes(b"not even a pickle")
    assert open_checkpoint(path).files() == [path / "model.safetensors"]


def test_views_parameters_and_shared_storage(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    values = OrderedDict(
        transposed=base.T,
        slice=base[1:3, ::2],
        row=base[2],
        parameter=torch.nn.Parameter(base * 2),
        scalar=torch.tensor(3.0),
        empty=torch.zeros(0, 4),
    )
    files = opened(tmp_path, values)
    for name, value in values.items():
        loaded = files.load(name)
        assert torch.equal(loaded, value)
        assert files.shape(name) == tuple(value.shape)
        assert type(loaded) is torch.Tensor
        assert loaded.is_contiguous()
        assert not loaded.requires_grad
        assert all(0 < len(sample) <= 256 for sample in files.samples(name))


def test_nothing_writes_to_the_file(tmp_path: Path) -> None:
    files = opened(tmp_path, {"x": torch.zeros(3)})
    before = (tmp_path / FILE).read_bytes()
    files.load("x").fill_(7)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_state_dict_inside_a_dictionary_of_its_own(tmp_path: Path) -> None:
    assert opened(tmp_path, {"state_dict": {"x": torch.zeros(3)}}).names() == {"x"}


def test_names_that_are_not_stored(tmp_path: Path) -> None:
    files = opened(tmp_path, {"x": torch.zeros(3)})
    for read in (files.shape, files.dtype, files.load, lambda name: list(files.samples(name))):
        with pytest.raises(ModelError, match="holds no tensor y"):
            read("y")


# --- what is refused --------------------------------------------------------------------------


class Runs:
    """Pickles to a call of `function(*arguments)`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("function", [os.system, os.mkdir, eval, getattr, pickle.loads])
def test_a_file_that_wants_to_run_something(
    tmp_path: Path, function: Any, new_format: bool
) -> None:
    mark = tmp_path / "mark"
    arguments = {
        os.system: f"touch {mark}",
        os.mkdir: str(mark),
        eval: f"__import__('os').mkdir({str(mark)!r})",
        getattr: "x",
        pickle.loads: pickle.dumps(Runs(os.mkdir, str(mark))),
    }
    values = {"x": torch.zeros(3), "y": Runs(function, arguments[function])}
    torch.save(values, tmp_path / FILE, _use_new_zipfile_serialization=new_format)
    reason = refusal(tmp_path)
    assert re.search(rf"the file wants to call (\w+\.)?{function.__name__},", reason)
    assert "it was not run" in reason
    assert "weights_only=False" not in reason
    assert not mark.exists()


def test_the_test_pickle_does_run_where_pickles_are_run(tmp_path: Path) -> None:
    torch.save({"y": Runs(os.mkdir, str(tmp_path / "mark"))}, tmp_path / FILE)
    torch.load(tmp_path / FILE, weights_only=False)
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "must hold a flat dictionary of tensors, found an empty dictionary"),
        ([torch.zeros(1)], "must hold a flat dictionary of tensors, found list"),
        (torch.zeros(1), "must hold a flat dictionary of tensors, found Tensor"),
        ({"state_dict": {}, "epoch": 3}, "state_dict is not a plain tensor (found an empty dict"),
        ({"model": {"x": torch.zeros(1)}}, "model is not a plain tensor (found a dictionary with"),
        ({"state_dict": {"x": {}}}, "x is not a plain tensor (found an empty dictionary)"),
        ({"epoch": 3}, "epoch is not a plain tensor (found int)"),
        ({3: torch.zeros(1)}, "tensor names must be strings, found 3"),
        ({"x": torch.eye(3).to_sparse()}, "x is not a plain tensor (sparse or quantised)"),
        ({"x": torch.zeros(3, device="meta")}, "x is not a plain tensor (its data is on meta)"),
        ({"x": torch.zeros(1).expand(1 << 40)}, "x is not a plain tensor (larger than its data)"),
        ({"x": torch.zeros(3, dtype=torch.complex64).conj()}, "x is not a plain tensor (a lazy"),
    ],
    ids=range(12),
)
def test_files_that_hold_something_else(tmp_path: Path, values: Any, reason: str) -> None:
    torch.save(values, tmp_path / FILE)
    assert reason in refusal(tmp_path)


def test_tensors_with_a_scale_of_their_own(tmp_path: Path) -> None:
    quantised = torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8)
    torch.save({"x": quantised}, tmp_path / FILE)
    assert "x is not a plain tensor (sparse or quantised)" in refusal(tmp_path)


def test_types_that_are_no_weights_are_refused_by_name(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    path = write_bin(tmp_path, WEIGHTS | {name: WEIGHTS[name].to(torch.int32)})
    with pytest.raises(ModelError, match=f"{name} is stored as int32, which is not supported"):
        check_tensors(open_checkpoint(path))


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
def test_truncated_files(tmp_path: Path, new_format: bool) -> None:
    whole = io.BytesIO()
    torch.save({"x": torch.ones(100)}, whole, _use_new_zipfile_serialization=new_format)
    data = whole.getvalue()
    for length in (0, 1, 2, 10, len(data) // 2, len(data) - 1):
        (tmp_path / FILE).write_bytes(data[:length])
        assert "damaged PyTorch file, or not one" in refusal(tmp_path)


@pytest.mark.parametrize("data", [b"PK", b"\x80", b"hello", b"GGUF" * 10, bytes(1000)])
def test_other_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    assert "damaged PyTorch file, or not one" in refusal(tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert "cannot be read (Is a directory)" in refusal(tmp_path)


def test_compressed_archives(tmp_path: Path) -> None:
    """Mapped data would be the compressed bytes."""
    torch.save({"x": torch.zeros(1000)}, tmp_path / "stored")
    with (
        zipfile.ZipFile(tmp_path / "stored") as stored,
        zipfile.ZipFile(tmp_path / FILE, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in stored.namelist():
            packed.writestr(member, stored.read(member))
    assert "is compressed; convert the model to safetensors" in refusal(tmp_path)


def test_a_small_legacy_file_that_claims_large_storage(tmp_path: Path) -> None:
    whole = io.BytesIO()
    torch.save({"x": torch.zeros(1000)}, whole, _use_new_zipfile_serialization=False)
    # 1000 as a pickled two-byte integer, of the storage and of the tensor's shape.
    data = whole.getvalue().replace(b"M\xe8\x03", b"M\xff\xff")
    (tmp_path / FILE).write_bytes(data)
    assert "damaged" in refusal(tmp_path)


def test_authors_own_layout_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "consolidated.00.pth").write_bytes(b"")
    with pytest.raises(ModelError, match=r"consolidated.00.pth is in the layout of the model's"):
        shards.open_all(tmp_path)


def test_an_index_of_another_kind(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "a.safetensors")
    torch.save({"x": torch.zeros(1)}, tmp_path / "a.bin")
    for index, file in ((shards.BIN_INDEX, "a.safetensors"), (shards.SAFETENSORS_INDEX, "a.bin")):
        (tmp_path / index).write_text(json.dumps({"weight_map": {"x": file}}))
        with pytest.raises(ModelError, match=rf"the shard {file} is not a \.\w+ file"):
            shards.open_all(tmp_path)
        (tmp_path / index).unlink()


# --- damage -----------------------------------------------------------------------------------


def small_file(new_format: bool) -> bytes:
    whole = io.BytesIO()
    values = {"x": torch.arange(6.0).reshape(2, 3), "y": torch.nn.Parameter(torch.ones(2))}
    torch.save(values, whole, _use_new_zipfile_serialization=new_format)
    return whole.getvalue()


SMALL = {new_format: small_file(new_format) for new_format in (True, False)}


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    new_format=st.booleans(),
    changes=st.lists(
        st.tuples(st.integers(0, 2**16), st.sampled_from([0, 1, 127, 255]) | st.integers(0, 255)),
        min_size=1,
        max_size=4,
    ),
)
def test_mutated_files_open_or_raise_model_error(
    tmp_path: Path, new_format: bool, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(SMALL[new_format])
    for place, value in changes:
        content[place % len(content)] = value
    (tmp_path / FILE).write_bytes(content)
    try:
        files = TorchBinFiles(tmp_path, [FILE])
    except ModelError:
        return
    for name in files.names():
        assert tuple(files.load(name).shape) == files.shape(name)
        assert all(len(sample) <= 256 for sample in files.samples(name))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), prefix=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02"]))
def test_any_bytes_are_refused(tmp_path: Path, data: bytes, prefix: bytes) -> None:
    (tmp_path / FILE).write_bytes(prefix + data)
    with pytest.raises(ModelError):
        TorchBinFiles(tmp_path, [FILE])
