"""Packed weights on disk: written once, mapped by every later start, never trusted blindly."""

from __future__ import annotations

import errno
import json
import logging
import mmap
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from model_files import write_gguf, write_hf
from native_models import usable_paths

from outpace.models.checkpoint import Checkpoint
from outpace.models.gguf.file import GGUFFile
from outpace.models.native import file_hashes, packed_file
from outpace.models.native.packed_file import (
    list_packed,
    packed_in_memory,
    packed_weights,
    remove_packed,
)
from outpace.models.native.weights import Matrix, PackedData, plan_matrices
from outpace.models.open import open_checkpoint

pytestmark = pytest.mark.skipif(not usable_paths(), reason="the native library is not built")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, in which small models get files too."""
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_file, "SMALLEST_FILE", 0)
    return tmp_path / "cache" / "packed"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return settled(write_gguf(tmp_path / "tiny model.gguf", kind=Kind.Q4_1))


def settled(path: Path, age_s: float = 60.0) -> Path:
    """The file, as if it had been written a while ago."""
    before = path.stat().st_mtime - age_s
    os.utime(path, (before, before))
    return path


def planned(path: Path, dtype: str = "auto") -> tuple[Checkpoint, list[Matrix]]:
    checkpoint = open_checkpoint(path)
    return checkpoint, plan_matrices(checkpoint.config, checkpoint, dtype)


def load(path: Path, dtype: str = "auto", progress: Any = None) -> PackedData:
    return packed_weights(*planned(path, dtype), label=dtype, progress=progress)


def assert_right(packed: PackedData, path: Path, dtype: str = "auto") -> None:
    expected = packed_in_memory(*planned(path, dtype))
    assert list(packed) == list(expected)
    assert all(np.array_equal(packed[name], expected[name]) for name in expected)


def is_mapped(packed: PackedData) -> bool:
    """Whether the bytes are those of a file, which nobody may write to."""
    return not any(array.flags.writeable for array in packed.values())


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.packed"))


def test_the_second_start_maps_what_the_first_one_packed(model, own_cache, monkeypatch) -> None:
    steps: list[tuple[int, int]] = []
    first = load(model, progress=lambda *done: steps.append(done))
    assert is_mapped(first)
    assert_right(first, model)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1] == (own_cache / files(own_cache)[0]).stat().st_size

    def packing(*args: Any) -> None:
        raise AssertionError("packed again")

    def hashing(*args: Any) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr(Matrix, "pack_into", packing)
    monkeypatch.setattr(file_hashes.hashlib, "file_digest", hashing)
    second = load(model)
    assert is_mapped(second)
    monkeypatch.undo()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert all(array.ctypes.data % 64 == 0 for array in second.values())


def test_nothing_else_lies_in_the_directory(model, own_cache) -> None:
    load(model)
    (name,) = files(own_cache)
    assert name.startswith("tiny_model-auto-")
    assert {path.name for path in own_cache.iterdir()} <= {name, ".lock", "hashes.json"}


def test_each_choice_of_formats_has_a_file(model, own_cache) -> None:
    for dtype in ("auto", "float32", "bfloat16"):
        assert_right(load(model, dtype), model, dtype)
    assert len(files(own_cache)) == 3


def test_hugging_face_directories_in_several_files(tmp_path, own_cache) -> None:
    path = write_hf(tmp_path / "hf", num_shards=3)
    packed = load(path, "bfloat16")
    assert is_mapped(packed)
    assert_right(packed, path, "bfloat16")
    (listed,) = list_packed()
    assert len(listed.sources) == 3


@pytest.mark.parametrize("settle", [True, False])
def test_changed_weights_are_packed_again_and_take_the_place_of_the_old(
    tmp_path, own_cache, settle
) -> None:
    """Same name, same size: what tells them apart is the time of change, or the content."""
    path = write_gguf(tmp_path / "model.gguf", kind=Kind.Q8_0)
    if settle:
        settled(path)
    before = load(path)
    data = bytearray(path.read_bytes())
    data[GGUFFile(path).tensors["blk.0.ffn_up.weight"].offset + 3] ^= 1
    path.write_bytes(data)
    after = load(path)
    assert_right(after, path)
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    assert len(files(own_cache)) == 1


def test_small_models_get_no_file(model, own_cache, monkeypatch) -> None:
    monkeypatch.undo()
    assert not is_mapped(load(model))


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "truncated":
        del data[-1:]
    elif how == "longer":
        data += b"x"
    elif how == "header":
        data[60] ^= 1
    elif how == "magic":
        data[0] ^= 1
    elif how == "older version":
        data[8] = 0
    elif how == "only a beginning":
        del data[20:]
    elif how == "empty":
        data.clear()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "how",
    ["truncated", "longer", "header", "magic", "older version", "only a beginning", "empty"],
)
def test_a_damaged_file_is_made_again(model, own_cache, how) -> None:
    load(model)
    path = own_cache / files(own_cache)[0]
    good = path.read_bytes()
    damaged(path, how)
    assert path.read_bytes() != good
    assert list_packed() == []
    again = load(model)
    assert is_mapped(again)
    assert path.read_bytes() == good


def test_damaged_content_is_made_again(model, own_cache, caplog) -> None:
    load(model)
    path = own_cache / files(own_cache)[0]
    good = path.read_bytes()
    changed = bytearray(good)
    changed[-100] ^= 1
    path.write_bytes(changed)
    assert is_mapped(load(model))
    assert path.read_bytes() == good
    assert "is damaged and is made again" in caplog.text


def test_a_header_that_names_other_matrices_is_not_believed(model, own_cache) -> None:
    load(model)
    path = own_cache / files(own_cache)[0]
    _, matrices = planned(model)
    header = packed_file._read_header(path)
    assert header is not None
    assert packed_file._mapped(path, header["key"], matrices) is not None
    assert packed_file._mapped(path, header["key"], matrices[:-1]) is None
    assert packed_file._mapped(path, "0" * 64, matrices) is None


def test_older_and_damaged_files_go_when_a_new_one_is_written(model, own_cache) -> None:
    load(model)
    own_cache.joinpath("old.packed").write_bytes(b"OUTPACKD" + bytes(100))
    newer = own_cache / "newer.packed"
    newer.write_bytes(b"OUTPACKD" + bytes([255]) + bytes(100))
    load(model, "float32")
    assert len(files(own_cache)) == 3
    assert newer.exists()


def test_files_of_models_that_are_gone_go_too(model, own_cache) -> None:
    load(model)
    (name,) = files(own_cache)
    other = model.with_name("other.gguf")
    model.rename(other)
    load(settled(other))
    assert name not in files(own_cache)
    assert len(files(own_cache)) == 1


def full_disk(*args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_no_reason_to_fail(model, own_cache, monkeypatch, caplog) -> None:
    monkeypatch.setattr(packed_file.os, "fsync", full_disk)
    with caplog.at_level(logging.WARNING):
        packed = load(model)
    assert not is_mapped(packed)
    assert_right(packed, model)
    assert "No space left on device" in caplog.text
    assert "OUTPACE_CACHE" in caplog.text
    assert files(own_cache) == []
    assert not list(own_cache.glob(".partial*"))


def test_a_cache_that_is_no_directory(model, own_cache, caplog) -> None:
    own_cache.parent.write_text("a file")
    packed = load(model)
    assert_right(packed, model)
    assert "packed weights cannot be kept" in caplog.text


def test_a_file_that_is_there_serves_where_nothing_can_be_written(
    model, own_cache, monkeypatch
) -> None:
    load(model)

    class Lock:
        def __init__(self, path: Path) -> None:
            raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(packed_file, "FileLock", Lock)
    assert is_mapped(load(model))


def _load_in_child(cache: str, path: str, queue: Any) -> None:
    os.environ["OUTPACE_CACHE"] = cache
    packed_file.SMALLEST_FILE = 0
    packed = load(Path(path))
    queue.put((is_mapped(packed), int(packed["embedding"].sum(dtype=np.int64))))


def test_two_processes_at_once(model, own_cache) -> None:
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()
    arguments = (str(own_cache.parent), str(model), queue)
    children = [context.Process(target=_load_in_child, args=arguments) for _ in range(3)]
    for child in children:
        child.start()
    results = {queue.get(timeout=60) for _ in children}
    for child in children:
        child.join()
    assert len(results) == 1
    assert len(files(own_cache)) == 1
    assert_right(load(model), model)


def test_listing_and_removing(model, own_cache) -> None:
    assert list_packed() == []
    mapped = load(model)
    (listed,) = list_packed()
    assert listed.sources == (str(model.resolve()),)
    assert listed.label == "auto"
    assert listed.num_bytes == listed.path.stat().st_size
    total = int(mapped["embedding"].sum(dtype=np.int64))
    assert remove_packed() == [listed.path]
    assert files(own_cache) == []
    # Whoever has it mapped is not disturbed.
    assert int(mapped["embedding"].sum(dtype=np.int64)) == total


def test_pages_are_shared_and_read_only(model, own_cache, monkeypatch) -> None:
    modes = []
    whole = mmap.mmap

    def watched(*args: Any, **kwargs: Any) -> mmap.mmap:
        modes.append(kwargs)
        return whole(*args, **kwargs)

    load(model)
    planned_model = planned(model)
    monkeypatch.setattr(packed_file.mmap, "mmap", watched)
    packed_weights(*planned_model, "auto")
    assert modes == [{"access": mmap.ACCESS_READ}]


class TestFileHash:
    def test_it_is_remembered_by_path_size_and_time(self, tmp_path, monkeypatch) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"abc")
        settled(path)
        calls = []
        digest = file_hashes.hashlib.file_digest
        monkeypatch.setattr(
            file_hashes.hashlib, "file_digest", lambda *a: calls.append(1) or digest(*a)
        )
        first = file_hashes.file_hash(path, tmp_path / "memory")
        assert file_hashes.file_hash(path, tmp_path / "memory") == first
        assert len(calls) == 1
        path.write_bytes(b"abd")
        settled(path, 30)
        assert file_hashes.file_hash(path, tmp_path / "memory") != first
        assert len(calls) == 2

    def test_what_changed_just_now_is_not_remembered(self, tmp_path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"abc")
        file_hashes.file_hash(path, tmp_path / "memory")
        assert not (tmp_path / "memory").exists()

    @pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 3}'])
    def test_a_damaged_memory_is_no_error(self, tmp_path, content) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"abc")
        settled(path)
        (tmp_path / "hashes.json").write_text(content.replace('"a"', json.dumps(str(path))))
        first = file_hashes.file_hash(path, tmp_path)
        assert first == file_hashes.file_hash(path, tmp_path / "other")
        assert str(path) in json.loads((tmp_path / "hashes.json").read_text())
