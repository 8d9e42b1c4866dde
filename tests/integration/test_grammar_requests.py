"""Requests with grammars through the whole engine: ends, forced runs, errors, company."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engine_cases import GREEDY, PROMPT, PROMPTS, TARGET, ids_of, run, speculating
from plain import plain_llm
from scripted import random_tokens, scripted
from tiny import END_ID, tiny_model

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.outputs import CompletionOutput, RequestOutput
from outpace.types import Draft, Sequence

CONFIGS: dict[str, dict[str, Any]] = {
    "random": {"method": scripted(random_tokens(100)), "num_speculative_tokens": 4},
    "suffix": {"method": "suffix"},
    "auto": {"method": "auto", "num_speculative_tokens": 6},
    "draft_model": {
        "method": "draft_model",
        "model": tiny_model(seed=2, num_layers=1),
        "num_speculative_tokens": 3,
    },
}
LONG = ("the answer is no", "the answer is not known")


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, LLM]]:
    made = {name: LLM(TARGET, speculative_config=c, max_num_seqs=3) for name, c in CONFIGS.items()}
    made["plain"] = plain_llm(TARGET)
    yield made
    for llm in made.values():
        llm.close()


def one(llm: LLM, structure: dict[str, Any], **asked: Any) -> CompletionOutput:
    params = SamplingParams(**{"max_tokens": 60, "structured_outputs": structure} | asked)
    return run(llm, params, [PROMPT])[0].outputs[0]


STRUCTURES: dict[str, dict[str, Any]] = {
    "choice": {"choice": LONG},
    "regex": {"regex": r"[A-Z][a-z]{2,6} \d{3}-\d{2}"},
    "gbnf": {"grammar": 'root ::= "a" ("b" | "c")* "d"'},
    "lark": {"grammar": 'start: "<" NAME ">"\nNAME: /[a-z]+/'},
    "json": {
        "json": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 31]}},
            "required": ["ok", "n"],
            "additionalProperties": False,
        },
        "disable_any_whitespace": True,
    },
}
# What TARGET can write of `{"ok":true,"n":1}` stands in its vocabulary of 96 but for the braces.
WIDE = tiny_model(vocab_size=258, seed=1)


@pytest.mark.parametrize("way", [{"temperature": 0}, {"seed": 5}], ids=str)
def test_every_method_gives_the_same_words(way: dict[str, Any]) -> None:
    texts: list[list[str]] = []
    for config in ({"method": "none"}, CONFIGS["suffix"], CONFIGS["random"]):
        with LLM(WIDE, speculative_config=config) as llm:
            texts.append([one(llm, structure, **way).text for structure in STRUCTURES.values()])
    assert texts[0] == texts[1] == texts[2]
    patterns = (
        "|".join(LONG),
        STRUCTURES["regex"]["regex"],
        "a[bc]*d?",
        "<[a-z]+>?",
        '{"ok":(true|false),"n":(1|2|31)}',
    )
    for text, pattern in zip(texts[0], patterns, strict=True):
        assert re.fullmatch(pattern, text), text


def test_what_must_come_is_drafted_without_the_drafter() -> None:
    asked: list[int] = []

    def propose(seq: Sequence, budget: int) -> Draft:
        asked.append(seq.num_output)
        return Draft((50,) * budget, None, "silly")

    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs={"choice": LONG})
    with speculating(propose, 5) as llm, llm.stream({"prompt_token_ids": PROMPT}, params) as stream:
        events = list(stream)
    (answer,) = stream.output.outputs
    assert answer.text in LONG
    origins = [origin for event in events for origin in event.origins]
    forced = len("the answer is no")
    # Five forced tokens and one of the target's own in each step, until there is a choice.
    assert origins[:6] == ["grammar"] * 5 + [""]
    assert origins.count("grammar") >= forced - forced // 6 - 1
    assert all(place >= forced for place in asked)
    stats = stream.output.stats
    assert stats.num_accepted_tokens == origins.count("grammar")
    assert stats.num_steps <= len(answer.token_ids) // 6 + 3


def test_a_failed_drafter_leaves_what_must_come() -> None:
    def propose(seq: Sequence, budget: int) -> Draft:
        raise RuntimeError("of no use")

    structure = {"regex": "(a|b)the rest is given(c|d)"}
    with speculating(propose, 4, max_num_seqs=2) as llm:
        outputs = run(llm, SamplingParams(temperature=0, structured_outputs=structure), [PROMPT])
        (without,) = run(llm, SamplingParams(temperature=0, max_tokens=12), [PROMPT])
    assert outputs[0].stats.num_drafter_errors == 1
    assert outputs[0].stats.num_accepted_tokens > 10
    assert without.stats.num_draft_tokens == 0


def test_nothing_is_drafted_where_nothing_is_to_be(engines: dict[str, LLM]) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs={"choice": LONG})
    (plain,) = run(engines["plain"], params, [PROMPT])
    given = {"prompt_token_ids": PROMPT}
    (asked,) = engines["suffix"].generate([given], params, speculative=False)
    assert plain.stats.num_draft_tokens == asked.stats.num_draft_tokens == 0
    assert plain.outputs[0].token_ids == asked.outputs[0].token_ids


@pytest.mark.parametrize("name", [*CONFIGS, "plain"])
def test_company_changes_nothing(name: str, engines: dict[str, LLM]) -> None:
    """Requests with different grammars and with none in one batch, each as it is by itself."""
    structures: list[Any] = [None, {"choice": LONG}, {"regex": "[a-h]{3,9}"}, None, {"regex": "x+"}]
    params = [
        SamplingParams(temperature=t, seed=3, max_tokens=9, structured_outputs=structure)
        for t in (0.0, 1.0)
        for structure in structures
    ]
    prompts = [{"prompt_token_ids": PROMPTS[i % 5]} for i in range(len(params))]
    together = engines[name].generate(prompts, params)
    alone = [engines["plain"].generate([p], [a])[0] for p, a in zip(prompts, params, strict=True)]
    assert ids_of(together) == ids_of(alone)


@pytest.mark.parametrize("name", [*CONFIGS, "plain"])
def test_each_of_several_answers_keeps_to_the_grammar(name: str, engines: dict[str, LLM]) -> None:
    params = SamplingParams(
        n=3, seed=11, temperature=2.0, max_tokens=20, structured_outputs={"regex": "(ab|ba){4}"}
    )
    (output,) = run(engines[name], params, [PROMPT])
    texts = [answer.text for answer in output.outputs]
    assert all(re.fullmatch("(ab|ba){4}", text) for text in texts)
    assert len(set(texts)) > 1
    (plain,) = run(engines["plain"], params, [PROMPT])
    assert texts == [answer.text for answer in plain.outputs]


def test_the_limit_of_tokens_cuts_a_word(engines: dict[str, LLM]) -> None:
    for name in engines:
        answer = one(engines[name], {"choice": LONG}, temperature=0, max_tokens=6)
        assert (answer.text, answer.finish_reason) == ("the an", "length")


def test_a_complete_answer_ends_with_the_end_token(engines: dict[str, LLM]) -> None:
    for name in engines:
        answer = one(engines[name], {"choice": ["same"]}, temperature=0)
        assert (answer.text, answer.finish_reason, answer.stop_reason) == ("same", "stop", None)
        assert answer.token_ids[-1] == END_ID
        assert len(answer.token_ids) == 5


def test_a_processor_cannot_allow_what_the_grammar_forbids(engines: dict[str, LLM]) -> None:
    def insist(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        return torch.full_like(logits, 0.0).index_fill(0, torch.tensor([50]), 99.0)

    for name in engines:
        answer = one(engines[name], {"choice": LONG}, temperature=0, logits_processors=[insist])
        assert answer.text in LONG


@pytest.mark.parametrize("name", [*CONFIGS, "plain"])
@pytest.mark.parametrize(
    "asked",
    [{"min_tokens": 9}, {"allowed_token_ids": [3, 4, END_ID]}],
    ids=str,
)
def test_where_no_token_is_left_the_request_ends_with_the_reason(
    name: str, asked: dict[str, Any], engines: dict[str, LLM]
) -> None:
    llm = engines[name]
    with llm.stream({"prompt_token_ids": PROMPTS[1]}, GREEDY) as beside:
        with pytest.raises(OptionError, match=r"no token is left .*structured_outputs"):
            one(llm, {"choice": ["same"]}, temperature=0, **asked)
        assert len(beside.drain().outputs[0].token_ids) == GREEDY.max_tokens


@pytest.mark.parametrize("name", ["random", "draft_model"])
def test_cancelled_in_the_middle(name: str, engines: dict[str, LLM]) -> None:
    endless = {"regex": "(ab|ba){120}"}
    params = SamplingParams(temperature=1.0, max_tokens=None, structured_outputs=endless)
    llm = engines[name]
    with llm.stream({"prompt_token_ids": PROMPT}, params) as stream:
        for _ in range(3):
            next(stream)
    assert stream.output.outputs[0].finish_reason == "abort"
    assert set(stream.output.outputs[0].text) <= {"a", "b"}
    assert one(llm, {"choice": ["same"]}).text == "same"


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ({"json": {"type": "nothing"}}, "this json cannot be used: Invalid type: nothing"),
        ({"regex": "("}, "this regex cannot be used"),
        ({"jsn": {}}, "structured_outputs key jsn is not supported; supported: json, regex"),
        ({"json_object": True, "regex": "a"}, "exactly one of .* got regex and json_object"),
        ({}, "exactly one of .* got none"),
    ],
)
def test_nothing_runs_where_one_cannot_be_compiled(
    structure: dict[str, Any], message: str, engines: dict[str, LLM]
) -> None:
    steps_before = engines["plain"].metrics.num_steps
    with pytest.raises(OptionError, match=message):
        run(
            engines["plain"],
            [SamplingParams(), SamplingParams(structured_outputs=structure)],
            [PROMPT, PROMPT],
        )
    assert engines["plain"].metrics.num_steps == steps_before


def test_a_grammar_and_chunks_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_cases import feed_in_chunks

    params = SamplingParams(temperature=0, max_tokens=30, structured_outputs={"choice": LONG})
    with plain_llm(TARGET) as llm:
        expected = ids_of(run(llm, params))
    feed_in_chunks(7, monkeypatch)
    with LLM(TARGET, speculative_config=CONFIGS["random"], max_num_seqs=3) as llm:
        outputs: list[RequestOutput] = run(llm, params)
    assert ids_of(outputs) == expected
