"""The feature store: what is written is read, and an interruption costs the last sequence only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from interrupted import contents, without_syncs

from outpace.errors import OptionError
from outpace.training.store import (
    Entry,
    FeatureStore,
    Header,
    bfloat16_bits,
    bytes_needed,
)

HEADER = Header((1, 4), 3, 100, "fingerprint-of-the-target")
LENGTHS = [2, 1, 3]


def sequence(index: int) -> tuple[list[int], dict[int, np.ndarray], Entry]:
    rng = np.random.default_rng(index)
    count = LENGTHS[index]
    tokens = rng.integers(0, 100, count).tolist()
    features = {
        layer: rng.integers(0, 2**15, (count, 3)).astype(np.uint16) for layer in HEADER.capture
    }
    return tokens, features, Entry(1, count, f"quelle-ü{index}", 0.7, index == 1, f"key{index}")


def fill(store: FeatureStore) -> None:
    for index in range(len(store), len(LENGTHS)):
        store.append(*sequence(index))
    store.flush()


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A store that nothing happened to."""
    fill(FeatureStore.open_to_write(tmp_path / "whole", HEADER))
    return tmp_path / "whole"


def test_what_is_written_is_read(whole: Path) -> None:
    store = FeatureStore.open(whole)
    assert len(store) == 3
    assert (store.capture, store.hidden_size) == ((1, 4), 3)
    assert [store.source(i) for i in range(3)] == ["quelle-ü0", "quelle-ü1", "quelle-ü2"]
    assert [store.num_tokens(i) for i in range(3)] == LENGTHS
    assert [store.is_held_out(i) for i in range(3)] == [False, True, False]
    assert (store.num_prompt(2), store.temperature(2)) == (1, 0.7)
    batch = store.batch([2, 0])
    assert batch.starts == (0, 3, 5)
    assert batch.token_ids.tolist() == sequence(2)[0] + sequence(0)[0]
    assert batch.is_answer.tolist() == [False, True, True, False, True]
    for layer in HEADER.capture:
        bits = np.concatenate([sequence(2)[1][layer], sequence(0)[1][layer]])
        assert batch.features[layer].dtype == torch.bfloat16
        assert np.array_equal(batch.features[layer].view(torch.uint16).numpy(), bits)


def test_what_was_added_since_is_read_after_a_flush(tmp_path: Path) -> None:
    store = FeatureStore.open_to_write(tmp_path, HEADER)
    store.append(*sequence(0))
    store.flush()
    assert store.batch([0]).token_ids.tolist() == sequence(0)[0]
    store.append(*sequence(1))
    store.flush()
    assert store.batch([1]).token_ids.tolist() == sequence(1)[0]
    assert FeatureStore.open(tmp_path).keys == {"key0", "key1"}


def states(whole: Path) -> Iterator[dict[str, bytes]]:
    """The files of the store after every single byte of their writing, in the order of `append`."""
    final, state = contents(whole), {}
    state["store.json"] = final["store.json"]
    yield dict(state)
    begun = dict.fromkeys(["tokens.bin", "features-1.bin", "features-4.bin"], 0)
    lines = final["sequences.jsonl"].splitlines(keepends=True)
    for length, line in zip(LENGTHS, lines, strict=True):
        parts = []
        for name, size in zip(begun, [4, 6, 6], strict=True):
            end = begun[name] + length * size
            parts.append((name, final[name][begun[name] : end]))
            begun[name] = end
        for name, part in [*parts, ("sequences.jsonl", line)]:
            before = state.get(name, b"")
            for count in range(len(part) + 1):
                state[name] = before + part[:count]
                yield dict(state)


def test_interrupted_at_any_byte_a_run_ends_with_the_same_files(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_syncs(monkeypatch)
    expected, again, lengths = contents(whole), tmp_path / "again", set()
    for state in states(whole):
        again.mkdir()
        for name, content in state.items():
            (again / name).write_bytes(content)
        reader = FeatureStore.open(again)
        assert len(reader) == state.get("sequences.jsonl", b"").count(b"\n")
        store = FeatureStore.open_to_write(again, HEADER)
        lengths.add(len(store))
        assert [store.num_tokens(i) for i in range(len(store))] == LENGTHS[: len(store)]
        fill(store)
        assert contents(again) == expected
        shutil.rmtree(again)
    assert lengths == {0, 1, 2, 3}


def test_a_sequence_without_all_its_data_does_not_count(whole: Path) -> None:
    path = whole / "features-4.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert len(FeatureStore.open(whole)) == 2


def test_two_writers_are_noticed(whole: Path) -> None:
    one, other = (FeatureStore.open_to_write(whole, HEADER) for _ in range(2))
    one.append(*sequence(0))
    with pytest.raises(OptionError, match="one process at a time"):
        other.append(*sequence(1))


@pytest.mark.parametrize(
    "header",
    [Header((1, 5), 3, 100, HEADER.fingerprint), Header((1, 4), 3, 100, "another")],
)
def test_features_of_something_else_are_not_mixed_in(whole: Path, header: Header) -> None:
    with pytest.raises(OptionError, match="use another directory"):
        FeatureStore.open_to_write(whole, header)


def test_no_store_and_a_newer_one_are_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no features"):
        FeatureStore.open(tmp_path / "nothing")
    path = whole / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(OptionError, match="format 2"):
        FeatureStore.open(whole)


def test_more_than_the_disk_has_room_for_is_refused_beforehand(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FeatureStore.open(whole)
    needed = bytes_needed(1000, HEADER.capture, HEADER.hidden_size)
    assert needed == 1000 * (4 + 2 * 3 * 2)
    for free, is_enough in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        if is_enough:
            store.check_space(1000)
        else:
            with pytest.raises(OptionError, match=r"1,000 tokens need 0\.00 GB .* larger disk"):
                store.check_space(1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_are_rounded_as_torch_rounds_them(dtype: torch.dtype) -> None:
    values = torch.randn(300, 97, dtype=torch.float64).mul(1e3).to(dtype)
    values[5, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    values[7, :2] = torch.tensor([1.00390625, 1.01171875])  # halfway: to the even neighbour
    bits = bfloat16_bits(values)
    assert bits.dtype == np.uint16
    assert np.array_equal(bits, values.to(torch.bfloat16).view(torch.uint16).numpy())
