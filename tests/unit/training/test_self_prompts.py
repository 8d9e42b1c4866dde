"""Prompts that a model invents for itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from pathlib import Path

import pytest
from interrupted import KillAfter, killed, prefixes, without_syncs
from tiny import tiny_tokenizer

from outpace import SamplingParams
from outpace.errors import OptionError
from outpace.models.chat import ChatTemplate
from outpace.models.tokenizer import Tokenizer
from outpace.training import self_prompts as module
from outpace.training.self_prompts import SelfPromptOptions, self_prompts, user_turn

TOKENIZER = tiny_tokenizer()
OPTIONS = SelfPromptOptions(target="tiny", beginnings={"": 1.0, "Tell me ": 1.0})


class Writer:
    """Goes on with the user's turn, as `write` says for a number that only the seed decides."""

    def __init__(
        self,
        write: Callable[[random.Random], str],
        before_each: Callable[[], object] = lambda: None,
    ) -> None:
        self.write, self.before_each = write, before_each
        self.asked: list[str] = []

    def generate(
        self, prompts: List[List[int]], params: List[SamplingParams]
    ) -> Iterator[tuple[int, List[int]]]:
        for index in reversed(range(len(prompts))):
            self.before_each()
            self.asked.append(TOKENIZER.decode(prompts[index], skip_special_tokens=False))
            assert (params[index].temperature, params[index].stop) == (1.0, ("<|end|>",))
            text = self.write(random.Random(params[index].seed))
            yield index, TOKENIZER.encode(text, add_special_tokens=False)


def sentence(rng: random.Random) -> str:
    return f" something number {rng.randrange(10**6)}<|end|>"


def texts_of(path: Path, write: Callable[[random.Random], str], count: int = 20) -> list[str]:
    return [p.text for p in self_prompts(count, Writer(write), TOKENIZER, path, OPTIONS)]


def test_the_model_goes_on_where_the_user_would_speak(tmp_path: Path) -> None:
    writer = Writer(sentence)
    prompts = self_prompts(20, writer, TOKENIZER, tmp_path / "p.jsonl", OPTIONS)
    assert len({p.text for p in prompts}) == 20
    assert {p.source for p in prompts} == {"self", "self:Tell me"}
    assert set(writer.asked) == {"user\n", "user\nTell me"}
    for prompt in prompts:
        begins = "Tell me something number" if ":" in prompt.source else "something number"
        assert prompt.text.startswith(begins)
        assert prompt.license.startswith("none")


def test_what_is_no_prompt_is_dropped(tmp_path: Path) -> None:
    def write(rng: random.Random) -> str:
        number = rng.randrange(10**6)
        return rng.choice(
            [
                sentence(rng),
                f" never comes to an end {number}",
                " too short<|end|>",
                f" with <|begin|> in it {number}<|end|>",
                f"-glued to its beginning {number}<|end|>",
                " said again and again<|end|>",
            ]
        )

    texts = texts_of(tmp_path / "p.jsonl", write, 30)
    assert len(set(texts)) == 30
    assert not [t for t in texts if "never" in t or "short" in t or "with" in t]
    assert not [t for t in texts if t.startswith("Tell me-")]
    assert [t for t in texts if t.startswith("-glued")]
    assert 1 <= sum("again" in t for t in texts) <= 2


def test_interrupted_a_run_ends_with_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_syncs(monkeypatch)
    path = tmp_path / "whole.jsonl"
    texts = texts_of(path, sentence, 4)
    whole, again = path.read_bytes(), tmp_path / "again.jsonl"
    for torn in list(prefixes(whole))[::3]:
        again.write_bytes(torn)
        assert texts_of(again, sentence, 4) == texts
        assert again.read_bytes() == whole
    monkeypatch.setattr(module, "BATCH", 3)
    monkeypatch.setattr("outpace.training.jsonl.SYNC_EVERY", 1)
    writer = Writer(sentence, KillAfter(4))
    killed_path = tmp_path / "killed.jsonl"
    assert killed(lambda: self_prompts(4, writer, TOKENIZER, killed_path, OPTIONS))
    assert 0 < len(killed_path.read_bytes()) < len(whole)
    assert texts_of(killed_path, sentence, 4) == texts
    assert killed_path.read_bytes() == whole


def test_more_can_be_asked_for_later(tmp_path: Path) -> None:
    few = texts_of(tmp_path / "p.jsonl", sentence, 5)
    more = texts_of(tmp_path / "p.jsonl", sentence, 9)
    assert more[:5] == few
    assert more == texts_of(tmp_path / "fresh.jsonl", sentence, 9)
    assert texts_of(tmp_path / "p.jsonl", sentence, 5) == few


def test_a_model_that_never_ends_its_turn_is_given_up_on(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="only 0 were new and came to an end within 96 tokens"):
        texts_of(tmp_path / "p.jsonl", lambda rng: " and on and on and on and on")


def test_prompts_made_otherwise_are_not_mixed_in(tmp_path: Path) -> None:
    texts_of(tmp_path / "p.jsonl", sentence, 2)
    other = SelfPromptOptions(target="another")
    with pytest.raises(OptionError, match="prompts of another model"):
        self_prompts(2, Writer(sentence), TOKENIZER, tmp_path / "p.jsonl", other)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
            "'<|im_end|>' + '\\n' }}{% endfor %}",
            ("<|im_start|>user\n", "<|im_end|>"),
        ),
        (
            "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] | trim }} [/INST]"
            "{% endfor %}",
            ("<s>[INST] ", "[/INST]"),
        ),
        ("{% for m in messages %}User: {{ m['content'] }}{% endfor %}", ("User: ", "")),
    ],
)
def test_the_users_turn_is_found_in_any_template(template: str, expected: tuple[str, str]) -> None:
    chat = ChatTemplate(template, {"bos_token": "<s>"})
    assert user_turn(Tokenizer(TOKENIZER._backend, chat=chat)) == expected


def test_a_model_without_such_a_turn_is_refused() -> None:
    with pytest.raises(OptionError, match="has no chat template"):
        user_turn(Tokenizer(TOKENIZER._backend))
    with pytest.raises(OptionError, match="does not repeat what the user says"):
        user_turn(Tokenizer(TOKENIZER._backend, chat=ChatTemplate("Hello", {})))
