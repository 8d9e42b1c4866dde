"""Answers of a target: the same whatever was interrupted, and read back as they were written."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from pathlib import Path

import pytest
from engine_cases import TARGET
from interrupted import KillAfter, killed, prefixes, without_syncs
from tiny import tiny_tokenizer

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.models.tokenizer import Tokenizer
from outpace.training import answers as module
from outpace.training.answers import (
    Answer,
    AnswerOptions,
    SamplingMix,
    generate_answers,
    read_answers,
)
from outpace.training.prompts import Prompt

TOKENIZER = tiny_tokenizer()
OPTIONS = AnswerOptions(target="tiny", max_tokens=12, seed=3)


class Fake:
    """Answers that depend on the prompt and its parameters alone, finished in any order."""

    def __init__(self, before_each: Callable[[], object] = lambda: None) -> None:
        self.before_each = before_each
        self.asked: list[tuple[int, ...]] = []

    def generate(
        self, prompts: List[List[int]], params: List[SamplingParams]
    ) -> Iterator[tuple[int, List[int]]]:
        self.asked += [tuple(ids) for ids in prompts]
        order = list(range(len(prompts)))
        random.Random(len(prompts)).shuffle(order)
        for index in order:
            self.before_each()
            one = params[index]
            rng = random.Random(f"{list(prompts[index])} {one.temperature} {one.seed}")
            yield index, [rng.randrange(96) for _ in range(rng.randrange(1, 12))]


class Real:
    """The tiny target in an engine."""

    def generate(
        self, prompts: List[List[int]], params: List[SamplingParams]
    ) -> Iterator[tuple[int, List[int]]]:
        with LLM(TARGET, max_num_seqs=4, speculative_config={"method": "none"}) as llm:
            outputs = llm.generate(
                [{"prompt_token_ids": list(ids)} for ids in prompts], list(params)
            )
        for index, output in enumerate(outputs):
            yield index, output.outputs[0].token_ids


def prompts(count: int = 20) -> list[Prompt]:
    return [Prompt.from_user(f"say {i}", f"s{i % 2}", "c", "MIT") for i in range(count)]


def run(path: Path, generator: object, count: int = 20, **changes: object) -> list[Answer]:
    options = AnswerOptions(**{"target": "tiny", "max_tokens": 12, "seed": 3, **changes})
    return generate_answers(prompts(count), generator, TOKENIZER, path, options)


def test_answers_come_in_the_order_of_the_prompts_and_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    told: list[tuple[int, int, int]] = []
    answers = generate_answers(
        prompts(), Fake(), TOKENIZER, path, OPTIONS, lambda *counts: told.append(counts)
    )
    assert [a.text for a in answers] == [p.text for p in prompts()]
    assert [a.source for a in answers[:3]] == ["s0", "s1", "s0"]
    assert (answers[0].category, answers[0].license) == ("c", "MIT")
    assert answers[0].prompt_token_ids == tuple(prompts()[0].token_ids(TOKENIZER))
    assert read_answers(path, TOKENIZER) == answers
    assert told[0] == (0, 20, 0)
    assert told[-1] == (20, 20, sum(len(a.answer_token_ids) for a in answers))


def test_torn_at_any_byte_and_called_again_a_run_ends_with_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_syncs(monkeypatch)
    whole = tmp_path / "whole.jsonl"
    answers = run(whole, Fake(), 3)
    content, path, asked = whole.read_bytes(), tmp_path / "again.jsonl", set()
    for torn in prefixes(content):
        path.write_bytes(torn)
        fake = Fake()
        assert run(path, fake, 3) == answers
        assert path.read_bytes() == content
        asked.add(len(fake.asked))
    assert asked == {0, 1, 2, 3}


def test_killed_and_called_again_a_run_ends_with_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = run(tmp_path / "whole.jsonl", Fake())
    monkeypatch.setattr(module, "BATCH", 8)
    monkeypatch.setattr("outpace.training.jsonl.SYNC_EVERY", 3)
    kept = set()
    for calls in range(0, 20, 3):
        path = tmp_path / f"{calls}.jsonl"
        assert killed(lambda p=path, n=calls: run(p, Fake(KillAfter(n))))
        kept.add(path.read_bytes().count(b"\n") if path.exists() else 0)
        assert run(path, Fake()) == answers
        assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert len(kept) > 3


def test_an_error_of_the_engine_costs_no_finished_answer(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the engine is gone")

    path = tmp_path / "answers.jsonl"
    run(path, Fake(), 5)
    with pytest.raises(RuntimeError, match="the engine is gone"):
        run(path, Fake(fail), 20)
    fake = Fake()
    assert len(run(path, fake, 20)) == 20
    assert len(fake.asked) == 15


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_a_target_answers_does_not_depend_on_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = run(tmp_path / "together.jsonl", Real(), 8)
    monkeypatch.setattr(module, "BATCH", 3)
    assert run(tmp_path / "apart.jsonl", Real(), 8) == together
    assert len({a.temperature for a in together}) > 1
    assert len({a.answer_token_ids for a in together}) > 5
    other = run(tmp_path / "seed.jsonl", Real(), 8, seed=4)
    assert [a.answer_token_ids for a in other] != [a.answer_token_ids for a in together]


@pytest.mark.parametrize(
    "changes",
    [{"target": "x"}, {"max_tokens": 13}, {"seed": 4}, {"mix": SamplingMix(((1.0, 1.0),))}],
)
def test_answers_made_otherwise_are_not_mixed_in(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    path = tmp_path / "answers.jsonl"
    run(path, Fake(), 2)
    with pytest.raises(OptionError, match="made with other options"):
        run(path, Fake(), 2, **changes)


def test_other_prompts_add_to_a_file_and_take_nothing_else_from_it(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    many = run(path, Fake(), 10)
    fake = Fake()
    assert run(path, fake, 4) == many[:4]
    assert fake.asked == []
    assert run(path, fake, 12)[:10] == many
    assert len(fake.asked) == 2


def test_long_prompts_are_left_out_and_equal_ones_asked_once(tmp_path: Path) -> None:
    fake = Fake()
    given = [*prompts(2), Prompt.from_user("long " * 40, "x"), *prompts(3)]
    options = AnswerOptions(target="tiny", max_prompt_tokens=60)
    answers = generate_answers(given, fake, TOKENIZER, tmp_path / "a.jsonl", options)
    assert [a.text for a in answers] == ["say 0", "say 1", "say 2"]
    assert len(fake.asked) == 3


def test_temperatures_are_mixed_as_asked(tmp_path: Path) -> None:
    mix = SamplingMix.parse("0:2, 0.7:1,1:1")
    assert mix.shares == ((0.0, 2.0), (0.7, 1.0), (1.0, 1.0))
    drawn = Counter(mix.temperature(i / 100) for i in range(100))
    assert drawn == {0.0: 50, 0.7: 25, 1.0: 25}
    found = Counter(a.temperature for a in run(tmp_path / "a.jsonl", Fake(), 400, mix=mix))
    assert 160 <= found[0.0] <= 240
    assert 70 <= found[0.7] <= 130


@pytest.mark.parametrize("text", ["", "0", "0:x", "0:1:2", "0:0", "0:-1", "-1:1", "0:nan", "0:inf"])
def test_a_mix_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        SamplingMix.parse(text)


def test_answers_given_as_text_become_what_the_target_would_have_said(tmp_path: Path) -> None:
    path = tmp_path / "given.jsonl"
    path.write_text(
        '{"prompt": "hello", "answer": "good day", "temperature": 0, "license": "MIT"}\n'
        '{"messages": [{"role": "user", "content": "hi"}], "answer": "yes", "source": "me"}\n'
    )
    first, second = read_answers(path, TOKENIZER)
    asked = "user\nhello<|end|>\nassistant\n"
    assert TOKENIZER.decode(first.prompt_token_ids, skip_special_tokens=False) == asked
    assert TOKENIZER.decode(first.answer_token_ids, skip_special_tokens=False) == "good day<|end|>"
    assert (first.source, first.temperature, first.license) == ("given", 0.0, "MIT")
    assert (second.source, second.temperature, second.text) == ("me", 1.0, "hi")


def test_answers_given_to_a_model_without_a_template(tmp_path: Path) -> None:
    bare = Tokenizer(TOKENIZER._backend, end_token_ids=[0])
    path = tmp_path / "given.jsonl"
    path.write_text('{"prompt": "one two", "answer": " three"}\n')
    (answer,) = read_answers(path, bare)
    assert bare.decode([*answer.prompt_token_ids, *answer.answer_token_ids]) == "one two three"


def test_bare_ids_have_a_text_to_be_compared_by(tmp_path: Path) -> None:
    path = tmp_path / "given.jsonl"
    ids = TOKENIZER.encode("some words", add_special_tokens=False)
    path.write_text(f'{{"prompt_token_ids": {ids}, "answer_token_ids": [5, 0]}}\n')
    (answer,) = read_answers(path, TOKENIZER)
    assert (answer.text, answer.answer_token_ids) == ("some words", (5, 0))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"prompt": "a"}', "line 2: expected `answer_token_ids`, or `answer`"),
        ('{"prompt": "a", "answer": ""}', "line 2: expected `answer_token_ids`, or `answer`"),
        ('{"answer": "a"}', "line 2: expected `prompt`"),
        ('{"answer_token_ids": [1]}', "line 2: prompt_token_ids must be a list"),
        ('{"prompt_token_ids": [1], "answer_token_ids": []}', "line 2: answer_token_ids must be"),
        ('{"prompt_token_ids": [1], "answer_token_ids": [96]}', "line 2: .* from 0 to 95"),
        ('{"prompt_token_ids": [true], "answer_token_ids": [1]}', "line 2: prompt_token_ids must"),
        ('{"prompt": "a", "answer": "b", "temperature": "x"}', "line 2: temperature must be"),
        ('{"prompt": "\\ud800", "answer": "b"}', "line 2: .*surrogate"),
        ("torn", "line 2: not JSON"),
    ],
)
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "given.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(OptionError, match=rf"given\.jsonl, {complaint}"):
        read_answers(path, TOKENIZER)


def test_a_file_without_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(OptionError, match="holds no answer"):
        read_answers(tmp_path / "empty.jsonl", TOKENIZER)
