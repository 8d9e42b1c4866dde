"""Tokenizers: the model's own ids, whatever file they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from model_files import (
    TEMPLATE,
    tokenizer_metadata,
    vocabulary,
    write_gguf,
    write_hf,
    write_tokenizer,
)
from model_files import tokenizer_from_gguf as from_gguf
from prompts import Prompt
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from outpace.errors import ModelError, OptionError
from outpace.models.hub import names
from outpace.models.open import open_checkpoint
from outpace.models.tokenizer import Tokenizer, check_same_vocabulary

AWKWARD = [
    "",
    " ",
    "  leading and trailing  ",
    "\n\n\t tabs\r\nand lines \n",
    "    if x ==  1:\n        return   2023",
    "1234567890 3.14 1,000 ½ Ⅻ ٣٤ 二",
    "don't can't I'LL we've it's O'Neil",
    "naïve café Ångström Å \u0301 ﬁ",
    "日本語と中文 한국어 العربية עברית हिन्दी",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 \u200d\ufe0f",
    "\x00\x01\x7f\x80\u2028\ufeff\ufffd",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|><|im_start|",
    "a<|im_end|>b <|im_end|>  <|im_end|>\n",
    "def f(x):\n    return [i ** 2 for i in range(x)]  # squares",
    "Ġ Ċ Ã©",
]


# --- the default model against transformers ---------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return open_checkpoint(names.resolve("smollm2-135m")).tokenizer()


@pytest.fixture(scope="module")
def reference(
    default_tokenizer_of_transformers: PreTrainedTokenizerFast,
) -> PreTrainedTokenizerFast:
    return default_tokenizer_of_transformers


@pytest.fixture(scope="module")
def saved(reference: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    reference.save_pretrained(path)
    return path


@pytest.mark.model
def test_default_model_equals_transformers(
    real: Tokenizer, reference: PreTrainedTokenizerFast, saved: Path, prompts: list[Prompt]
) -> None:
    directory = Tokenizer.from_directory(saved)
    reread = AutoTokenizer.from_pretrained(saved)
    assert real.vocab() == directory.vocab() == reference.get_vocab()
    assert real.fingerprint() == directory.fingerprint()
    assert real.end_token_ids == directory.end_token_ids == {reference.eos_token_id}
    assert real.bos_id == directory.bos_id == reference.bos_token_id
    for text in [*AWKWARD, *(prompt.text for prompt in prompts)]:
        ids = reference(text)["input_ids"]
        assert real.encode(text) == directory.encode(text) == ids == reread(text)["input_ids"]
        for skip in (False, True):
            decoded = reference.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert real.decode(ids, skip) == directory.decode(ids, skip) == decoded


@pytest.mark.model
def test_default_chat_template_equals_transformers(
    real: Tokenizer, reference: PreTrainedTokenizerFast, saved: Path, prompts: list[Prompt]
) -> None:
    directory = Tokenizer.from_directory(saved)
    conversations = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
    conversations.append(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "  Hi <|im_end|>\n"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "12  34 🙂"},
        ]
    )
    for messages in conversations:
        for add in (True, False):
            expected = reference.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add
            )
            assert real.apply_chat_template(messages, add) == expected
            assert directory.apply_chat_template(messages, add) == expected
            ids = reference.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=add, return_dict=False
            )
            assert real.encode(expected, add_special_tokens=False) == ids


@pytest.mark.model
@given(text=st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(AWKWARD))
def test_any_text_comes_back(
    real: Tokenizer, reference: PreTrainedTokenizerFast, text: str
) -> None:
    ids = real.encode(text)
    assert ids == reference(text)["input_ids"]
    # The published vocabulary lacks 21 bytes (rare control and lead bytes); they vanish there too.
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = byte_level.pre_tokenize_str(text)
    if all(character in real.vocab() for piece, _ in pieces for character in piece):
        assert real.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token_id < real.vocab_size for token_id in ids)


@pytest.mark.model
def test_digits_are_single_and_spaces_before_them_stay_together(real: Tokenizer) -> None:
    assert [real.token_text(i) for i in real.encode("x =   2023")] == [
        *("x", " =", "   "),
        *"2023",
    ]


@pytest.mark.model
def test_token_text_of_every_control_token(real: Tokenizer) -> None:
    assert real.token_text(1) == "<|im_start|>"
    assert real.decode([1, 2]) == ""
    assert real.encode("<|im_start|><|im_end|>") == [1, 2]


# --- small vocabularies -----------------------------------------------------------------------


def test_both_formats_make_the_same_tokenizer(tmp_path: Path) -> None:
    stored = open_checkpoint(write_gguf(tmp_path / "tiny.gguf")).tokenizer()
    directory = open_checkpoint(write_hf(tmp_path / "tiny")).tokenizer()
    check_same_vocabulary(stored, directory)
    assert stored.vocab() == directory.vocab()
    assert stored.fingerprint() == directory.fingerprint()
    assert stored.vocab_size == directory.vocab_size == 263
    assert stored.bos_id == directory.bos_id == 1
    assert stored.end_token_ids == directory.end_token_ids == {0}
    assert stored.chat_template == directory.chat_template == TEMPLATE
    for text in AWKWARD:
        ids = stored.encode(text)
        assert stored.decode(ids, skip_special_tokens=False) == text
        assert directory.decode(directory.encode(text), skip_special_tokens=False) == text


def test_control_and_user_defined_tokens() -> None:
    tokenizer = from_gguf()
    ids = tokenizer.encode("a<s><tool>b<e>")
    assert [ids[1], ids[2], ids[4]] == [1, 2, 0]
    # User-defined tokens are text of the answer; control tokens are not.
    assert tokenizer.decode(ids) == "a<tool>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<s><tool>b<e>"


def test_incomplete_characters_are_replaced() -> None:
    tokenizer = from_gguf()
    first, *rest = tokenizer.encode("🙂")
    assert tokenizer.decode([first]) == "\ufffd"
    assert tokenizer.decode([first, *rest]) == "🙂"


def test_directories_without_or_with_a_damaged_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer.json is missing; write one"):
        Tokenizer.from_directory(tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x", null]}}')
    with pytest.raises(ModelError, match="trust_remote_code is not supported"):
        Tokenizer.from_directory(tmp_path)
    for content in ("", "{}", '{"model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ModelError, match=r"tokenizer.json: cannot be read as a tokenizer"):
            Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("normalizer", "reads"),
    [
        ({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, False),
        ({"type": "Replace", "pattern": {"String": ""}, "content": "x"}, True),
    ],
)
def test_panics_of_the_library_are_errors_like_others(
    normalizer: dict[str, Any], reads: bool, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(values | {"normalizer": normalizer}))
    if not reads:
        with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
            Tokenizer.from_directory(tmp_path)
        return
    with pytest.raises(OptionError, match="cannot encode this text"):
        Tokenizer.from_directory(tmp_path).encode("hello")


def test_end_tokens_of_a_directory(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert Tokenizer.from_directory(tmp_path).end_token_ids == {0}
    (tmp_path / "config.json").write_text('{"eos_token_id": 5, "bos_token_id": 7}')
    assert Tokenizer.from_directory(tmp_path).end_token_ids == {0, 5}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    found = Tokenizer.from_directory(tmp_path)
    assert found.end_token_ids == {0, 1, 2}
    assert found.bos_id == 1
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.from_directory(tmp_path).bos_id == 7
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": ["<e>"]}')
    with pytest.raises(ModelError, match="eos_token_id must hold token ids"):
        Tokenizer.from_directory(tmp_path)


def test_end_tokens_that_can_never_be_drawn(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text('{"eos_token_id": [0, 9999]}')
    assert Tokenizer.from_directory(tmp_path).end_token_ids == {0, 9999}
    (tmp_path / "tokenizer_config.json").unlink()
    for stated in ("[9999, 263]", "-1"):
        file.write_text(f'{{"eos_token_id": {stated}}}')
        with pytest.raises(ModelError, match="outside the vocabulary of 263 ids"):
            Tokenizer.from_directory(tmp_path)
    with pytest.raises(ModelError, match=r"end token ids \[263\] are outside"):
        from_gguf(eos_token_id=263)  # a row that only pads the vocabulary


def test_where_a_directory_keeps_its_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    named = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.from_directory(tmp_path).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert Tokenizer.from_directory(tmp_path).chat_template == "J"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template.jinja: cannot be read"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    config.write_text('{"chat_template": 3}')
    with pytest.raises(ModelError, match=r"chat_template in tokenizer_config.json must be text"):
        Tokenizer.from_directory(tmp_path)
    config.unlink()
    assert Tokenizer.from_directory(tmp_path).chat_template is None


def test_padding_truncation_and_special_marks_of_a_directory(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_padding(length=50)
    backend.enable_truncation(3)
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": "<e>", "extra_special_tokens": ["<tool>", "<absent>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = Tokenizer.from_directory(tmp_path)
    assert len(found.encode("x" * 10)) == 10
    assert found.decode(found.encode("a<tool>b")) == "ab"
    assert "<absent>" not in found.vocab()


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(OptionError, match="lone surrogate at position 1"):
        from_gguf().encode("a\ud800")
    with pytest.raises(OptionError, match="must be a string, got bytes"):
        from_gguf().encode(b"a")  # type: ignore[arg-type]


# --- chat templates ---------------------------------------------------------------------------


def with_template(template: str | None) -> Tokenizer:
    values = tokenizer_metadata() | {"tokenizer.chat_template": template}
    return Tokenizer.from_gguf(values, "tiny")


USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hi<e>"),
        ("{% if add_generation_prompt %}\n  {%- set x = 1 %}\nA{% endif %}", "A"),
        ("{{ {'é': '<'} | tojson }}", '{"é": "<"}'),
        ("{{ messages | tojson(indent=1) }}", json.dumps(USER, indent=1)),
        ("{% for m in messages %}{% break %}x{% endfor %}", ""),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{% if tools is not none or documents %}x{% endif %}", ""),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ missing }}", ""),
    ],
)
def test_templates_see_what_they_are_written_for(template: str, expected: str) -> None:
    assert with_template(template).apply_chat_template(USER) == expected


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[0]['nothing'].x }}", "cannot render"),
        ("{% for %}", "cannot render"),
        ("{{ 1 / 0 }}", "cannot render"),
        ("{{ ''.__class__.__mro__ }}", "cannot render"),
        ("{{ messages.append(1) }}", "cannot render"),
        ("{% include '/etc/passwd' %}", "cannot render"),
    ],
)
def test_template_errors_are_option_errors(template: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        with_template(template).apply_chat_template(USER)


def test_a_model_without_a_template_says_so() -> None:
    values = tokenizer_metadata()
    del values["tokenizer.chat_template"]
    tokenizer = Tokenizer.from_gguf(values, "tiny")
    assert tokenizer.chat_template is None
    with pytest.raises(OptionError, match="tiny has no chat template; give a plain prompt"):
        tokenizer.apply_chat_template(USER)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "non-empty list"),
        ("hi", "non-empty list"),
        ({"role": "user", "content": "hi"}, "non-empty list"),
        (None, "non-empty list"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"role": "user"}], r"messages\[0\].content must be a string, got None"),
        ([{"content": "hi"}], r"messages\[0\].role must be a string"),
        ([*USER, {"role": 1, "content": "x"}], r"messages\[1\].role must be a string, got 1"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text must be a string"),
        ([{**USER[0], "tool_calls": [{}]}], r"messages\[0\].tool_calls is for messages of"),
    ],
)
def test_bad_messages_are_named(messages: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        from_gguf().apply_chat_template(messages)


def test_absent_optional_fields_of_messages_are_fine() -> None:
    message = {"role": "user", "content": "hi", "tool_calls": None, "name": "Ada"}
    assert from_gguf().apply_chat_template([message]) == "<s>user\nhi<e>\n"


# --- same vocabulary --------------------------------------------------------------------------


def test_padding_rows_and_merges_do_not_make_a_difference() -> None:
    tokens, kinds, _ = vocabulary()
    padded = from_gguf(tokens=[*tokens, "[PAD264]"], token_type=[*kinds, 5], merges=["h e"])
    check_same_vocabulary(from_gguf(), padded)
    check_same_vocabulary(padded, from_gguf())
    assert padded.fingerprint() == from_gguf().fingerprint()


def test_the_first_differing_id_is_named_with_both_tokens() -> None:
    tokens, kinds, _ = vocabulary()
    swapped = [*tokens]
    swapped[10], swapped[20] = tokens[20], tokens[10]
    with pytest.raises(OptionError) as caught:
        check_same_vocabulary(from_gguf(), from_gguf(tokens=swapped))
    assert f"id 10 is {tokens[10]!r} in tiny and {tokens[20]!r} in tiny" in str(caught.value)
    assert from_gguf(tokens=swapped).fingerprint() != from_gguf().fingerprint()
    longer = from_gguf(tokens=[*tokens, "zz"], token_type=[*kinds, 1])
    with pytest.raises(OptionError, match=r"id 264 is 'zz' in tiny and no token in tiny"):
        check_same_vocabulary(longer, from_gguf())
    with pytest.raises(OptionError, match=r"id 264 is no token in tiny and 'zz' in tiny"):
        check_same_vocabulary(from_gguf(), longer)
