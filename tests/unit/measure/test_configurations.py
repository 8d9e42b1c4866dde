"""Ways of computing a model, as they are named; and the texts to compare them on."""

from __future__ import annotations

from pathlib import Path

import pytest

from outpace.errors import OptionError
from outpace.measure.configurations import Configuration, compare_configurations
from outpace.measure.texts import read_texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bfloat16", Configuration("bfloat16")),
        ("q4_1,activations=int8", Configuration("q4_1", activations="int8")),
        (" model-impl = torch , float32 ", Configuration("float32", model_impl="torch")),
        ("kv_cache_dtype=float32", Configuration(kv_cache_dtype="float32")),
        ("bfloat16,model=a=b.gguf", Configuration("bfloat16", model="a=b.gguf")),
    ],
)
def test_settings_are_read(text: str, expected: Configuration) -> None:
    found = Configuration.parse(text)
    assert found == expected
    assert Configuration.parse(found.label) == found


def test_labels_name_what_was_chosen() -> None:
    assert Configuration.parse("activations=int8,q4_1").label == "q4_1,activations=int8"
    assert Configuration().label == "auto"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("int3", "dtype must be auto, float32"),
        ("q4_1,int8", "gives dtype twice"),
        ("dtype=float32,dtype=float32", "gives dtype twice"),
        ("q4_1,activation=int8", "'activation' in 'q4_1,activation=int8' is no setting; use dtype"),
        ("q4_1,activations=", "gives activations no value"),
        ("q4_1,activations=int4", "activations must be auto, bfloat16"),
        ("", "gives dtype no value"),
        ("bfloat16,model_impl=jax", "model_impl must be auto, native"),
        ("bfloat16,kv_cache_dtype=int8", "kv_cache_dtype must be auto, float32"),
    ],
)
def test_settings_that_mean_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Configuration.parse(text)
    assert words in str(caught.value)


def test_the_same_way_is_not_compared_twice() -> None:
    ways = [
        Configuration.parse("q4_1,model_impl=native"),
        Configuration("q4_1", model_impl="native"),
    ]
    with pytest.raises(OptionError, match="twice"):
        compare_configurations("unused", Configuration(), ways, ["text"], window_len=8)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_prose_is_one_text_a_file_and_prompts_one_a_line(tmp_path: Path) -> None:
    prose = write(tmp_path / "a.txt", "one\n\ntwo")
    lines = '{"turns": ["a", "b"]}\n\n{"prompt": "c"}\n{"text": "d", "other": 1}\n'
    prompts = write(tmp_path / "b.jsonl", lines)
    assert read_texts([prose, prompts]) == ["one\n\ntwo", "a\n\nb", "c", "d"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "", "holds no text"),
        ("a.txt", " \n\t", "holds no text"),
        ("a.jsonl", "\n", "holds no text"),
        ("a.txt", b"caf\xe9", "not UTF-8 text (byte 3)"),
        ("a.jsonl", '{"prompt": "a"}\n{}', "line 2"),
        ("a.jsonl", '{"turns": 3}', "line 1"),
        ("a.jsonl", '{"prompt": 3}', "line 1"),
        ("a.jsonl", "[1]", "line 1"),
        ("a.jsonl", "prose", "line 1"),
    ],
)
def test_files_without_text_are_refused(
    tmp_path: Path, name: str, content: str | bytes, words: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(OptionError) as caught:
        read_texts([path])
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.txt cannot be read"):
        read_texts([tmp_path / "none.txt"])
