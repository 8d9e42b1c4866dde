"""The GGUF reader: exact numbers, and no belief in what a header says."""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from model_files import CONFIG, random_weights, write_gguf

from outpace.errors import ModelError
from outpace.models.gguf.file import GGUFFile
from outpace.models.gguf.quants import DEQUANTISERS, dequantise
from outpace.models.hf.config import config_from_hf
from outpace.models.hub import names

KINDS = [Kind[name] for name in DEQUANTISERS]


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def header(
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    entries: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    num_tensors: int | None = None,
    num_entries: int | None = None,
) -> bytes:
    """A file written byte by byte, so that every part of it can be wrong."""
    entries, tensors = entries or [], tensors or []
    num_tensors = len(tensors) if num_tensors is None else num_tensors
    num_entries = len(entries) if num_entries is None else num_entries
    counts = struct.pack("<IQQ", version, num_tensors, num_entries)
    return magic + counts + b"".join(entries) + b"".join(tensors)


def tensor(name: str = "t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def entry(key: str, type_id: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_id) + value


def with_data(head: bytes, data: bytes, alignment: int = 32) -> bytes:
    return head + bytes(-len(head) % alignment) + data


def opened(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    return GGUFFile(path)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the reference
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_random_blocks_equal_the_reference_bit_by_bit(tmp_path: Path, kind: Kind) -> None:
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(kind.value)
    row = 512
    raw = rng.integers(0, 256, (50, row // block_len * block_bytes), dtype=np.uint8)
    head = header(tensors=[tensor(dims=(row, 50), kind=kind.value)])
    found = opened(tmp_path, with_data(head, raw.tobytes())).load("t").numpy()
    expected = gguf.quants.dequantize(raw, kind)
    assert found.shape == (50, row)
    assert found.dtype == np.float32
    # Random bytes hold NaN and infinite scales too; those must agree as well.
    np.testing.assert_array_equal(found, expected)
    finite = np.isfinite(found)
    assert finite.mean() > 0.5
    assert np.array_equal(found[finite].view(np.uint32), expected[finite].view(np.uint32))


@pytest.mark.parametrize("name", DEQUANTISERS)
def test_large_tensors_need_little_more_memory_than_they_have(name: str) -> None:
    block_len, block_bytes, _ = DEQUANTISERS[name]
    num_values = 1 << 22
    raw = np.zeros(num_values // block_len * block_bytes, np.uint8)
    tracemalloc.start()
    values = dequantise(name, raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert values.nbytes == 4 * num_values
    assert peak < 1.5 * values.nbytes


def test_blocks_by_hand(tmp_path: Path) -> None:
    scale, minimum = np.float16(0.5).tobytes(), np.float16(-1.0).tobytes()
    nibbles = bytes(low | (15 - low) << 4 for low in range(16))
    q4_1 = opened(
        tmp_path,
        with_data(header(tensors=[tensor(dims=(32,), kind=3)]), scale + minimum + nibbles),
    ).load("t")
    levels = [*range(16), *range(15, -1, -1)]
    assert q4_1.tolist() == [0.5 * level - 1.0 for level in levels]
    q4_0 = opened(
        tmp_path, with_data(header(tensors=[tensor(dims=(32,), kind=2)]), scale + nibbles)
    ).load("t")
    assert q4_0.tolist() == [0.5 * (level - 8) for level in levels]
    signed = np.arange(-16, 16, dtype=np.int8).tobytes()
    q8_0 = opened(
        tmp_path, with_data(header(tensors=[tensor(dims=(32,), kind=8)]), scale + signed)
    ).load("t")
    assert q8_0.tolist() == [0.5 * level for level in range(-16, 16)]


def test_every_kind_of_metadata(tmp_path: Path) -> None:
    values: list[tuple[int, str, Any]] = [
        (0, "B", 255),
        (1, "b", -128),
        (2, "H", 65535),
        (3, "h", -5),
        (4, "I", 2**32 - 1),
        (5, "i", -7),
        (6, "f", 0.5),
        (7, "?", True),
        (10, "Q", 2**64 - 1),
        (11, "q", -(2**63)),
        (12, "d", 1e300),
    ]
    entries = [entry(f"k{t}", t, struct.pack(f"<{code}", v)) for t, code, v in values]
    entries += [
        entry(f"a{t}", 9, struct.pack("<IQ", t, 2) + struct.pack(f"<2{code}", v, v))
        for t, code, v in values
    ]
    entries.append(entry("text", 8, text("naïve 🙂")))
    entries.append(entry("texts", 9, struct.pack("<IQ", 8, 2) + text("") + text("b")))
    found = opened(tmp_path, header(entries=entries)).metadata
    for type_id, _, value in values:
        assert found[f"k{type_id}"] == value
        assert found[f"a{type_id}"] == [value, value]
        assert type(found[f"k{type_id}"]) is type(found[f"a{type_id}"][0]) is type(value)
    assert found["text"] == "naïve 🙂"
    assert found["texts"] == ["", "b"]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 8, 32, 256])
def test_version_and_alignment(tmp_path: Path, version: int, alignment: int | None) -> None:
    entries = []
    if alignment is not None:
        entries.append(entry("general.alignment", 4, struct.pack("<I", alignment)))
    step = alignment or 32
    tensors = [tensor("a", (2,)), tensor("b", (1, 3), offset=max(step, 8))]
    data = struct.pack("<2f", 1, 2) + bytes(max(step, 8) - 8) + struct.pack("<3f", 3, 4, 5)
    content = with_data(header(version=version, entries=entries, tensors=tensors), data, step)
    file = opened(tmp_path, content)
    assert file.load("a").tolist() == [1, 2]
    assert file.load("b").tolist() == [[3], [4], [5]]


def test_loaded_tensors_are_the_callers_own(tmp_path: Path) -> None:
    content = with_data(header(tensors=[tensor()]), struct.pack("<4f", 1, 2, 3, 4))
    file = opened(tmp_path, content)
    file.load("t").zero_()
    assert file.load("t").tolist() == [1, 2, 3, 4]
    assert (tmp_path / "file.gguf").read_bytes() == content


HUGE = 2**64 - 1
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "magic": (header(magic=b"GGML"), "not a GGUF file"),
    "short": (b"GGUF\x03", "ends inside version"),
    "version 1": (header(version=1), "version 1 is not supported; supported: 2, 3"),
    "version 4": (header(version=4), "version 4 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (header(num_tensors=HUGE), "tensor count is"),
    "tensor count beyond the rest": (header(num_tensors=12) + bytes(24), "more than its"),
    "metadata count": (header(num_entries=2**40), "metadata count is"),
    "key length": (header(entries=[struct.pack("<Q", HUGE) + bytes(5)]), "metadata key 0"),
    "key not UTF-8": (header(entries=[text(b"\xff\xfe") + bytes(5)]), "not UTF-8"),
    "key twice": (header(entries=[entry("k", 0, b"1")] * 2), "'k' occurs twice"),
    "value type": (header(entries=[entry("k", 13, bytes(8))]), "unknown type 13"),
    "value missing": (header(entries=[entry("k", 10, bytes(7))]), "ends inside k"),
    "string length": (header(entries=[entry("k", 8, struct.pack("<Q", HUGE))]), "inside 'k'"),
    "string not UTF-8": (header(entries=[entry("k", 8, text(b"\xc3"))]), "not UTF-8"),
    "array length": (
        header(entries=[entry("k", 9, struct.pack("<IQ", 4, 2**62))]),
        "length of 'k' is",
    ),
    "string array length": (
        header(entries=[entry("k", 9, struct.pack("<IQ", 8, 2**60))]),
        "length of 'k' is",
    ),
    "array of arrays": (
        header(entries=[entry("k", 9, struct.pack("<IQ", 9, 1) + bytes(12))]),
        "element type 9",
    ),
    "no dimensions": (header(tensors=[tensor(dims=()) + bytes(8)]), "0 dimensions"),
    "many dimensions": (header(tensors=[tensor(dims=(1,) * 5)]), "5 dimensions"),
    "zero dimension": (header(tensors=[tensor(dims=(4, 0))]), "do not suit F32"),
    "broken block": (header(tensors=[tensor(dims=(33,), kind=8)]), "do not suit Q8_0"),
    "tensor type": (header(tensors=[tensor(kind=99)]), "unknown type 99"),
    "overflow": (header(tensors=[tensor(dims=(2**63, 2**63))]), "truncated"),
    "no data": (header(tensors=[tensor()]), "truncated"),
    "offset": (header(tensors=[tensor(offset=2**63)]), "truncated"),
    "offset alignment": (with_data(header(tensors=[tensor(offset=4)]), bytes(64)), "not aligned"),
    "tensor twice": (with_data(header(tensors=[tensor()] * 2), bytes(64)), "occurs twice"),
    "overlap": (
        with_data(header(tensors=[tensor("a", (16,)), tensor("b", offset=32)]), bytes(128)),
        "overlaps",
    ),
    "alignment zero": (
        header(entries=[entry("general.alignment", 4, bytes(4))], tensors=[tensor()]),
        "power of two",
    ),
    "alignment type": (
        header(entries=[entry("general.alignment", 8, text("32"))], tensors=[tensor()]),
        "power of two",
    ),
}


@pytest.mark.parametrize("case", DAMAGED, ids=lambda case: case.replace(" ", "-"))
def test_damage_is_named_and_nothing_is_allocated(tmp_path: Path, case: str) -> None:
    content, reason = DAMAGED[case]
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ModelError) as caught:
        GGUFFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert peak < 1_000_000


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            GGUFFile(path)


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    assert not {"IQ2_XXS", "TQ1_0"} & set(DEQUANTISERS)
    file = opened(tmp_path, with_data(header(tensors=[tensor("w", (256,), kind=16)]), bytes(66)))
    with pytest.raises(ModelError, match=r"tensor w is stored as IQ2_XXS.*supported: BF16.*Q4_K"):
        file.load("w")
    with pytest.raises(ModelError, match="holds no tensor v"):
        file.load("v")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return write_gguf(path, kind=Kind.Q8_0).read_bytes()


def test_every_truncation_is_an_error(tmp_path: Path, small_file: bytes) -> None:
    path = tmp_path / "file.gguf"
    header_len = 8000
    ends = {*range(0, header_len, 13), *range(header_len, len(small_file), 997)}
    for end in sorted(ends | {len(small_file) - 32}):
        path.write_bytes(small_file[:end])
        with pytest.raises(ModelError):
            GGUFFile(path)


def test_written_weights_come_back(tmp_path: Path) -> None:
    weights = random_weights(config_from_hf(CONFIG))
    file = GGUFFile(write_gguf(tmp_path / "a.gguf", weights=weights))
    found = file.load("token_embd.weight")
    assert torch.equal(found, weights["model.embed_tokens.weight"])


@pytest.mark.model
def test_default_model_equals_the_reference_bit_by_bit() -> None:
    path = names.resolve("smollm2-135m")
    file = GGUFFile(path)
    reference = gguf.GGUFReader(path)
    assert set(file.tensors) == {t.name for t in reference.tensors}
    # The embedding, the norms and every tenth layer: all types; the other layers are alike.
    checked = re.compile(r"token_embd.*|.*norm.*|blk\.\d?0\..*")
    for stored in filter(lambda tensor: checked.fullmatch(tensor.name), reference.tensors):
        expected = gguf.quants.dequantize(stored.data, stored.tensor_type)
        assert file.tensors[stored.name].type_name == stored.tensor_type.name
        np.testing.assert_array_equal(file.load(stored.name).numpy(), expected)
