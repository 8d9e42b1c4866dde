"""Prompt files: what is taken from them, what is refused, and in which order they come."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_tokenizer

from outpace.errors import OptionError
from outpace.models.tokenizer import Tokenizer
from outpace.training.jsonl import GrowingFile
from outpace.training.prompts import Prompt, count_sources, read_prompts, select_prompts


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    return path


def test_every_layout_is_read_and_says_where_it_is_from(tmp_path: Path) -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Why not."},
    ]
    path = written(
        tmp_path / "mixed.jsonl",
        {"prompt": "What\u2028is this?", "source": "gsm", "category": "math", "license": "MIT"},
        {"question_id": 8, "turns": ["First?", "Second?"], "category": "qa", "license": None},
        {"messages": conversation},
    )
    lines = tmp_path / "plain.txt"
    lines.write_text("One\n\n  Two \n")
    prompts = read_prompts([path, lines])
    assert prompts == [
        Prompt.from_user("What\u2028is this?", "gsm", "math", "MIT"),
        Prompt.from_user("First?", "mixed", "qa"),
        Prompt(tuple((m["role"], m["content"]) for m in conversation[:4]), "mixed"),
        Prompt.from_user("One", "plain"),
        Prompt.from_user("Two", "plain"),
    ]
    assert prompts[2].text == "Be brief.\n\nHi\n\nHello.\n\nWhy?"


def test_equal_prompts_are_taken_once(tmp_path: Path) -> None:
    one = written(tmp_path / "one.jsonl", {"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"})
    other = written(tmp_path / "other.jsonl", {"turns": ["b"]}, {"prompt": "c"})
    prompts = read_prompts([one, other])
    assert [(p.text, p.source) for p in prompts] == [("a", "one"), ("b", "one"), ("c", "other")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: not JSON"),
        (100_000 * "[", "line 2: not JSON"),
        ('["a"]', "line 2: expected a JSON object"),
        ('{"text": "a"}', "line 2: expected `prompt`.*got the keys text"),
        ('{"prompt": ""}', "line 2: prompt must be a text"),
        ('{"prompt": 3}', "line 2: prompt must be a text"),
        ('{"turns": []}', "line 2: turns must be a list"),
        ('{"turns": [4]}', r"line 2: turns\[0\] must be a text"),
        ('{"messages": "a"}', "line 2: messages must be a list"),
        ('{"messages": [{"content": "a"}]}', r"line 2: messages\[0\] must be an object"),
        ('{"messages": [{"role": "user"}]}', r"line 2: messages\[0\].content must be"),
        ('{"messages": [{"role": "system", "content": "a"}]}', "line 2: messages hold no turn"),
        ('{"prompt": "a", "source": 5}', "line 2: source must be a string"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(OptionError, match=rf"prompts\.jsonl, {complaint}"):
        read_prompts([path])


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    for name, complaint in (
        ("empty.txt", "holds no prompt"),
        ("latin.txt", "not UTF-8"),
        ("absent.txt", "cannot be read"),
    ):
        with pytest.raises(OptionError, match=complaint):
            read_prompts([tmp_path / name])


def some_prompts(count: int = 60) -> list[Prompt]:
    return [Prompt.from_user(f"prompt {i}", f"source-{i % 3}") for i in range(count)]


def test_the_order_depends_on_seed_and_texts_alone() -> None:
    prompts = some_prompts()
    order = select_prompts(prompts, seed=1)
    assert sorted(p.text for p in order) == sorted(p.text for p in prompts)
    assert order != prompts
    assert select_prompts(reversed(prompts), seed=1) == order
    assert select_prompts(prompts, seed=2) != order
    fewer = select_prompts(prompts[:40], seed=1)
    assert fewer == [p for p in order if p in prompts[:40]]


def test_limits_are_kept() -> None:
    chosen = select_prompts(some_prompts(), most_per_source=5, limits={"source-1": 12})
    assert Counter(p.source for p in chosen) == {"source-0": 5, "source-1": 12, "source-2": 5}
    assert select_prompts(some_prompts(), most=7) == select_prompts(some_prompts())[:7]
    with pytest.raises(OptionError, match="no prompt of source 'source-9'; there are source-0"):
        select_prompts(some_prompts(), limits={"source-9": 1})


def test_sources_are_counted_with_their_licences() -> None:
    prompts = [
        Prompt.from_user("a", "one", license="MIT"),
        Prompt.from_user("b", "two", license="MIT"),
        Prompt.from_user("c", "two"),
    ]
    assert count_sources(prompts) == {"two": (2, "several"), "one": (1, "MIT")}


def test_prompts_go_through_the_chat_template_where_there_is_one() -> None:
    tokenizer = tiny_tokenizer()
    prompt = Prompt((("system", "be nice"), ("user", "hello")), "x")
    text = tokenizer.decode(prompt.token_ids(tokenizer), skip_special_tokens=False)
    assert text == "system\nbe nice<|end|>\nuser\nhello<|end|>\nassistant\n"
    bare = Tokenizer(tokenizer._backend, end_token_ids=[0])
    assert bare.decode(prompt.token_ids(bare)) == "be nice\n\nhello"


def test_a_growing_file_loses_what_was_torn_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with GrowingFile(path) as file:
        file.add({"a": "ü"})
        file.add({"a": 2})
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = GrowingFile(path).rows
        assert len(kept) == (length >= first) + (length == len(whole))
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[: len(kept)])


def test_a_line_that_was_damaged_otherwise_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a":\n{"a": 3}\n')
    with pytest.raises(OptionError, match="line 2: not JSON"):
        GrowingFile(path)
