"""Damaged GGUF files: only ModelError comes out, and memory stays near the size of the file."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import FAMILIES, family_metadata, write_family
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import tokenizer_metadata, write_gguf

from outpace.errors import ModelError, OptionError
from outpace.models.gguf.config import config_from_gguf
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors
from outpace.models.tokenizer import Tokenizer

HEADER = 9000  # bytes of the files below that hold metadata and the table of tensors
QUICK = settings(max_examples=250, deadline=None)
LONG = settings(max_examples=3000, deadline=None)
FIXTURES = [HealthCheck.function_scoped_fixture]

Edit = tuple[str, int, int]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    path = tmp_path_factory.mktemp("fuzz")
    files = [write_gguf(path / "llama.gguf", kind=Kind.Q8_0)]
    files += [
        write_family(path / f"{family}.gguf", family, num_hidden_layers=1)
        for family in ("phi3-longrope", "gemma2", "llama3-scaled", "gptneox")
    ]
    return [file.read_bytes() for file in files]


def edits() -> st.SearchStrategy[list[Edit]]:
    """Most hit the first kilobytes, where the counts and the model's metadata are."""
    place = st.integers(0, 1500) | st.integers(0, HEADER)
    small = st.sampled_from([0, 1, 2, 8, 9, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
    huge = st.sampled_from([0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
    return st.lists(
        st.tuples(st.just("byte"), place, small)
        | st.tuples(st.just("count"), place, huge)
        | st.tuples(st.just("drop"), place, st.integers(1, 64))
        | st.tuples(st.just("repeat"), place, st.integers(1, 256))
        | st.tuples(st.just("end"), place | st.integers(0, 200_000), st.just(0)),
        min_size=1,
        max_size=5,
    )


def damaged(content: bytes, changes: list[Edit]) -> bytes:
    data = bytearray(content)
    for kind, place, value in changes:
        if kind == "byte" and place < len(data):
            data[place] = value
        elif kind == "count":
            data[place : place + 8] = struct.pack("<Q", value)
        elif kind == "drop":
            del data[place : place + value]
        elif kind == "repeat":
            data[place:place] = data[place : place + value]
        elif kind == "end":
            del data[place:]
    return bytes(data)


def use(path: Path) -> None:
    """What opening a model does, up to one of its weights."""
    checkpoint = open_checkpoint(path)
    checkpoint.fingerprint()
    check_tensors(checkpoint)
    checkpoint.load(min(checkpoint.names()))
    checkpoint.tokenizer().encode("hello <e> 12 🙂")


def survive(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        use(path)
    except ModelError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20 * len(content) + 2_000_000


def test_the_files_are_whole_before_they_are_damaged(tmp_path: Path, seeds: list[bytes]) -> None:
    for content in seeds:
        (tmp_path / "file.gguf").write_bytes(content)
        use(tmp_path / "file.gguf")


@settings(QUICK, suppress_health_check=FIXTURES)
@given(st.integers(0, 4), edits())
def test_damage_is_a_model_error(
    tmp_path: Path, seeds: list[bytes], seed: int, changes: list[Edit]
) -> None:
    survive(tmp_path / "file.gguf", damaged(seeds[seed], changes))


@pytest.mark.slow
@settings(LONG, suppress_health_check=FIXTURES)
@given(st.integers(0, 4), edits())
def test_much_damage_is_a_model_error(
    tmp_path: Path, seeds: list[bytes], seed: int, changes: list[Edit]
) -> None:
    survive(tmp_path / "file.gguf", damaged(seeds[seed], changes))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, 2, 3, 16, 17, 4096, 2**31, 2**63])
    | st.integers()
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=6,
)
SHAPES = {
    "token_embd.weight": (264, 64),
    "blk.0.ffn_norm.weight": (64,),
    "rope_freqs.weight": (8,),
    "rope_factors_long.weight": (8,),
    "rope_factors_short.weight": (8,),
}
NAMES = [
    "attention.key_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "attn_logit_softcapping",
    "final_logit_softcapping",
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(FAMILIES)), st.data())
def test_any_metadata_of_a_family_is_read_or_refused(family: str, data: st.DataObject) -> None:
    metadata = METADATA[family]
    architecture = metadata["general.architecture"]
    keys = [key for key in metadata if key.startswith(f"{architecture}.")]
    keys += [f"{architecture}.{name}" for name in NAMES]
    changes = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, min_size=1, max_size=4))
    names = data.draw(st.sets(st.sampled_from(sorted(SHAPES)[:-1])))
    shapes = {name: SHAPES[name] for name in names} | {"token_embd.weight": (264, 64)}
    factors = data.draw(st.lists(st.floats(), min_size=8, max_size=8))
    with suppress(ModelError):
        config_from_gguf(metadata | changes, shapes, family, lambda name: factors)


METADATA = {family: family_metadata(family) for family in FAMILIES}
TOKENIZER_KEYS = [
    *("model", "pre", "tokens", "token_type", "merges", "scores", "bos_token_id", "eos_token_id"),
    *("unknown_token_id", "add_bos_token", "add_eos_token", "add_space_prefix"),
]


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(TOKENIZER_KEYS), VALUES, max_size=4),
    st.lists(st.text(max_size=4) | st.sampled_from(["$A", "a:1", "$", ":", "\u2581"]), max_size=9),
    st.lists(st.integers(0, 7), max_size=9),
    st.sampled_from(["gpt2", "llama"]),
)
def test_any_vocabulary_is_read_or_refused(
    changes: dict[str, object], tokens: list[str], kinds: list[int], model: str
) -> None:
    count = min(len(tokens), len(kinds))
    values = tokenizer_metadata(
        model=model,
        tokens=tokens[:count],
        token_type=kinds[:count],
        scores=[-1.0] * count,
        merges=[],
        bos_token_id=min(1, count - 1),
        add_bos_token=True,
        eos_token_id=0,
        unknown_token_id=0,
    )
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    # A vocabulary that can be read may still be unable to spell this text, which is said as well.
    with suppress(ModelError, OptionError):
        Tokenizer.from_gguf(values, "tiny").encode("a hello <e> 12 🙂")
