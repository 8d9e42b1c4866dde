"""Prompts of every kind of file, and what is no prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_tokenizer

from outpace.errors import OptionError
from outpace.measure.prompts import (
    BUILT_IN,
    PROMPTS_VARIABLE,
    Question,
    default_files,
    fitting,
    read_questions,
)


def written(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_spec_bench_lines_ask_their_first_turn_and_chats_are_one_column(
    tmp_path: Path,
) -> None:
    file = written(
        tmp_path / "spec.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
        {"question_id": 300, "category": "rag", "turns": ["three"], "reference": []},
    )
    assert read_questions([file]) == [
        Question.from_user("81", "conversation", "one"),
        Question.from_user("300", "rag", "three"),
    ]


def test_prompt_lines_are_called_after_their_file(tmp_path: Path) -> None:
    file = written(tmp_path / "mine_dev.jsonl", {"prompt": "one"}, {"prompt": "two"})
    assert read_questions([file]) == [
        Question.from_user("mine_dev 1", "mine", "one"),
        Question.from_user("mine_dev 2", "mine", "two"),
    ]


def test_messages_keep_what_was_said_before(tmp_path: Path) -> None:
    said = [("system", "be brief"), ("user", "hi"), ("assistant", "hello"), ("user", "why?")]
    messages = [{"role": role, "content": content} for role, content in said]
    file = written(
        tmp_path / "chat.jsonl",
        {"category": "chat", "messages": [*messages, {"role": "assistant", "content": "because"}]},
    )
    (question,) = read_questions([file])
    assert question == Question("chat 1", "chat", tuple(said))
    tokenizer = tiny_tokenizer(258)
    text = tokenizer.decode(list(question.prompt(tokenizer).token_ids))
    assert [text.find(content) for _, content in said] == sorted(text.find(c) for _, c in said)
    assert "because" not in text


@pytest.mark.parametrize("suffix", [".txt", ".MD"])
def test_a_file_of_text_is_one_prompt(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"essay{suffix}"
    file.write_text("Two lines\nare one prompt.\n")
    assert read_questions([file]) == [
        Question.from_user("essay", "essay", "Two lines\nare one prompt.")
    ]


def test_labels_are_unique(tmp_path: Path) -> None:
    files = [
        written(tmp_path / name, {"question_id": 1, "prompt": name}) for name in ("a.jsonl", "b")
    ]
    assert [question.label for question in read_questions(files)] == ["1", "1 (2)"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "fine"}\n{"prompt": 7}', "line 2: prompt must be a text"),
        ("a.jsonl", '{"turns": []}', "line 1: turns must be a list"),
        ("a.jsonl", '{"text": "fine"}', "line 1: expected `prompt`"),
        ("a.jsonl", '{"prompt": "fine", "category": 3}', "line 1: category must be a string"),
        ("a.jsonl", "Write a letter.", "line 1: not JSON"),
        (
            "a.jsonl",
            '{"messages": [{"role": "assistant", "content": "hm"}]}',
            "no turn of the user",
        ),
        ("a.jsonl", "\n", "holds no prompt"),
        ("a.txt", " \n", "is empty"),
        ("a.txt", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_what_is_no_prompt_is_refused(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OptionError, match=message):
        read_questions([file])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_questions([tmp_path / "nowhere.jsonl"])


def test_questions_are_picked_by_category_and_length() -> None:
    tokenizer = tiny_tokenizer(258)
    questions = [
        Question.from_user(str(i), "ab"[i % 2], "x" * (100 if i < 2 else 3)) for i in range(10)
    ]

    def pick(seed: int) -> list[str]:
        found = fitting(questions, tokenizer, per_category=2, max_tokens=60, seed=seed)
        assert [question.category for question in found] == ["a", "a", "b", "b"]
        return [question.label for question in found]

    assert pick(0) == pick(0)
    assert not {"0", "1"} & {*pick(0), *pick(1), *pick(2)}
    assert len({tuple(pick(seed)) for seed in range(5)}) > 1
    with pytest.raises(OptionError, match="none of the 10 prompts has at most 5 tokens"):
        fitting(questions, tokenizer, per_category=2, max_tokens=5, seed=0)


def test_the_built_in_prompts_are_spread_over_kinds() -> None:
    questions = read_questions([BUILT_IN])
    categories = [question.category for question in questions]
    assert len(set(categories)) >= 5
    assert all(categories.count(category) >= 3 for category in categories)


class LetterTokenizer:
    """One token a letter, no chat template."""

    chat_template = None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_without_a_chat_template_there_is_the_bare_text() -> None:
    question = Question("1", "chat", (("user", "hi"), ("assistant", "hello"), ("user", "why?")))
    tokenizer: Any = LetterTokenizer()
    assert "".join(map(chr, question.prompt(tokenizer).token_ids)) == "hi\nhello\nwhy?"


def test_the_folder_in_the_environment_comes_before_the_built_in_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROMPTS_VARIABLE, raising=False)
    assert default_files() == (BUILT_IN,)
    monkeypatch.setenv(PROMPTS_VARIABLE, str(tmp_path))
    first, second = tmp_path / "spec_bench_dev.jsonl", tmp_path / "humaneval_dev.jsonl"
    assert default_files() == (first,)
    second.touch()
    assert default_files() == (first, second)
