"""Weight files of a directory: which are read, and indices that nobody should trust."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from outpace.errors import ModelError
from outpace.models.hf import shards
from outpace.models.hf.tensor_files import TensorFiles

TENSORS = {
    "matrix": torch.arange(12.0).reshape(4, 3),
    "half": torch.ones(5, dtype=torch.float16),
    "brain": torch.full((2, 2, 2), 0.5, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
    "words": torch.arange(4, dtype=torch.int32),
}
FIRST, SECOND = sorted(TENSORS)[:3], sorted(TENSORS)[3:]


def save_safetensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)


def save_bin(tensors: dict[str, torch.Tensor], path: Path) -> None:
    torch.save(tensors, path)


SAVE: dict[str, Callable[[dict[str, torch.Tensor], Path], None]] = {
    "safetensors": save_safetensors,
    "bin": save_bin,
}
SINGLE = {"safetensors": shards.SAFETENSORS, "bin": shards.BIN}
INDEX = {"safetensors": shards.SAFETENSORS_INDEX, "bin": shards.BIN_INDEX}


def write(path: Path, kind: str, num_files: int) -> Path:
    """TENSORS in one file, or in two with an index."""
    if num_files == 1:
        SAVE[kind](TENSORS, path / SINGLE[kind])
        return path
    weight_map = {}
    for file, names in ((f"first.{kind}", FIRST), (f"second.{kind}", SECOND)):
        SAVE[kind]({name: TENSORS[name] for name in names}, path / file)
        weight_map |= dict.fromkeys(names, file)
    write_index(path, kind, weight_map)
    return path


def write_index(path: Path, kind: str, weight_map: Any) -> None:
    (path / INDEX[kind]).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        shards.open_all(path)
    return str(caught.value)


# --- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_files", [1, 2])
@pytest.mark.parametrize("kind", SAVE)
def test_tensors_come_out_as_they_went_in(tmp_path: Path, kind: str, num_files: int) -> None:
    files = shards.open_all(write(tmp_path, kind, num_files))
    assert files.names() == set(TENSORS)
    assert len(files.files()) == num_files
    assert all(file.is_file() for file in files.files())
    for name, tensor in TENSORS.items():
        loaded = files.load(name)
        assert torch.equal(loaded, tensor)
        assert loaded.dtype == tensor.dtype
        assert loaded.is_contiguous()
        assert files.shape(name) == tuple(tensor.shape)
        assert files.dtype(name) == str(tensor.dtype).removeprefix("torch.")


def test_samples_are_the_first_bytes_of_three_rows(tmp_path: Path) -> None:
    wide = torch.randn(5, 100)
    save_file({"wide": wide} | TENSORS, tmp_path / shards.SAFETENSORS)
    files = shards.open_all(tmp_path)
    rows = [wide[row].numpy().tobytes()[:256] for row in (0, 2, 4)]
    assert list(files.samples("wide")) == rows
    assert list(files.samples("matrix")) == [
        TENSORS["matrix"][row].numpy().tobytes() for row in (0, 2, 3)
    ]
    assert list(files.samples("scalar")) == []
    assert list(files.samples("empty")) == []


def test_both_kinds_give_the_same_samples(tmp_path: Path) -> None:
    opened: list[TensorFiles] = []
    for kind in SAVE:
        (tmp_path / kind).mkdir()
        opened.append(shards.open_all(write(tmp_path / kind, kind, 1)))
    for name in TENSORS:
        assert list(opened[0].samples(name)) == list(opened[1].samples(name))


@pytest.mark.parametrize("kind", SAVE)
def test_names_that_are_not_stored(tmp_path: Path, kind: str) -> None:
    files = shards.open_all(write(tmp_path, kind, 1))
    for read in (files.shape, files.dtype, files.load, lambda name: list(files.samples(name))):
        with pytest.raises(ModelError, match="holds no tensor other"):
            read("other")


def test_which_files_are_read(tmp_path: Path) -> None:
    """One file before an index, safetensors before .bin."""
    assert "no weights found; expected model.safetensors, model.saf" in refusal(tmp_path)
    for kind, num_files in (("bin", 2), ("bin", 1), ("safetensors", 2), ("safetensors", 1)):
        files = shards.open_all(write(tmp_path, kind, num_files))
        assert len(files.files()) == num_files
        assert {file.suffix for file in files.files()} == {f".{kind}"}


# --- indices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SAVE)
@pytest.mark.parametrize(
    "place",
    ["../secret.{}", "a/../../secret.{}", "/secret.{}", "..\\secret.{}", "\\secret.{}", ""],
)
def test_indices_that_leave_the_directory(tmp_path: Path, kind: str, place: str) -> None:
    path = tmp_path / "model"
    path.mkdir()
    SAVE[kind]({"x": torch.zeros(1)}, tmp_path / f"secret.{kind}")
    write_index(path, kind, {"x": place.format(kind)})
    assert "outside the model's directory" in refusal(path)
    write_index(path, kind, {"x": str(tmp_path / f"secret.{kind}")})
    assert "outside the model's directory" in refusal(path)


@pytest.mark.parametrize("kind", SAVE)
def test_indices_that_disagree_with_the_files(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, 2)
    whole = json.loads((path / INDEX[kind]).read_text())["weight_map"]
    name = FIRST[0]
    for changes, reason in [
        ({name: f"second.{kind}"}, f"says {name} is in second.{kind}, but it is not"),
        ({"other": f"first.{kind}"}, f"says other is in first.{kind}, but it is not"),
        ({"other": f"third.{kind}"}, f"the shard third.{kind} named by"),
        ({"other": "."}, "the shard . is not a"),
        ({"other": 3}, "the file of other must be a name, got 3"),
        ({"other": None}, "the file of other must be a name, got None"),
        ({"other": "nul\0byte." + kind}, "is missing"),
        ({"other": "n" * 5000 + "." + kind}, "is missing"),
    ]:
        write_index(path, kind, whole | changes)
        assert reason in refusal(path)


@pytest.mark.parametrize("kind", SAVE)
def test_a_tensor_in_two_files(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, 2)
    (path / f"second.{kind}").write_bytes((path / f"first.{kind}").read_bytes())
    assert f"is in both first.{kind} and second.{kind}" in refusal(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(SAVE)), weight_map=JSON, wrapped=st.booleans())
def test_any_index_is_refused(tmp_path: Path, kind: str, weight_map: Any, wrapped: bool) -> None:
    if not (tmp_path / f"first.{kind}").exists():
        write(tmp_path, kind, 2)
    for other in INDEX.values():
        (tmp_path / other).unlink(missing_ok=True)
    content = {"weight_map": weight_map} if wrapped else weight_map
    (tmp_path / INDEX[kind]).write_text(json.dumps(content))
    assert INDEX[kind] in refusal(tmp_path)


def test_a_huge_index(tmp_path: Path) -> None:
    path = write(tmp_path, "safetensors", 2)
    write_index(path, "safetensors", {f"tensor.{i}": f"{i}.safetensors" for i in range(20_000)})
    assert "is missing" in refusal(path)
    (path / shards.SAFETENSORS_INDEX).write_text('{"weight_map":' * 100_000)
    assert "not valid JSON" in refusal(path)


# --- damaged safetensors ----------------------------------------------------------------------


def with_header(path: Path, header: bytes, num_bytes: int | None = None) -> None:
    """A safetensors file of this header and 64 bytes of data; num_bytes is the length it states."""
    length = struct.pack("<Q", len(header) if num_bytes is None else num_bytes)
    (path / shards.SAFETENSORS).write_bytes(length + header + bytes(64))


def entry(**changes: Any) -> bytes:
    fields = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]} | changes
    return json.dumps({"x": fields}).encode()


def test_the_undamaged_header_is_read(tmp_path: Path) -> None:
    with_header(tmp_path, entry())
    assert torch.equal(shards.open_all(tmp_path).load("x"), torch.zeros(4, 4))


@pytest.mark.parametrize(
    "header",
    [
        entry(shape=[4, 5]),
        entry(shape=[2**63, 2**63]),
        entry(shape=[-4, -4]),
        entry(data_offsets=[0, 2**63]),
        entry(data_offsets=[64, 0]),
        entry(data_offsets=[-64, 0]),
        entry(data_offsets=[0, 60]),
        entry(data_offsets=[4, 68]),
        entry(dtype="F31"),
        b"{",
        b"[" * 10_000,
        b"\xff" * 10,
        b"",
    ],
)
def test_headers_that_lie(tmp_path: Path, header: bytes) -> None:
    with_header(tmp_path, header)
    assert "model.safetensors: damaged safetensors file" in refusal(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 1, 10**6, 2**40, 2**64 - 1])
def test_header_lengths_that_lie(tmp_path: Path, num_bytes: int) -> None:
    with_header(tmp_path, entry(), num_bytes)
    assert "model.safetensors: damaged safetensors file" in refusal(tmp_path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    length=st.integers(0, 2**16),
)
def test_mutated_safetensors_open_or_raise_model_error(
    tmp_path: Path, changes: list[tuple[int, int]], length: int
) -> None:
    whole = tmp_path / "whole"
    if not whole.exists():
        save_file(TENSORS, whole)
    content = bytearray(whole.read_bytes())
    for place, value in changes:
        content[place % len(content)] = value
    if length < len(content):
        del content[length:]
    (tmp_path / shards.SAFETENSORS).write_bytes(content)
    try:
        files = shards.open_all(tmp_path)
    except ModelError:
        return
    for name in files.names():
        assert tuple(files.load(name).shape) == files.shape(name)
        assert all(len(sample) <= 256 for sample in files.samples(name))
