"""One engine, a drafting method for each request: mixing them changes nothing for anyone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_cases import GREEDY, PROMPT, PROMPTS, TARGET, VOCAB, expected, ids_of, run
from heads import random_medusa
from plain import plain_llm
from routed import Answer, fake_head, together
from scripted import oracle, random_tokens, scripted
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.drafters.base import Drafter
from outpace.drafters.parts.eagle_rows import MOST_REFED, EagleRows
from outpace.errors import ModelError, OptionError
from outpace.types import Draft, Sequence

SEEDED = SamplingParams(temperature=0.9, seed=7, top_p=0.9, max_tokens=60, ignore_eos=True)
LONG = list(range(2, 50))
"""Without features of its own of these tokens a head has to be shown them again."""


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every built-in method; chains, trees and trees with probes."""
    medusa: Path = random_medusa(TARGET, tmp_path_factory.mktemp("heads") / "medusa")
    return {
        "auto": {"model": fake_head("eagle3", seed=5)},
        "ngram": {},
        "suffix": {},
        "recycling": {"shape": "tree"},
        "lookahead": {"num_speculative_tokens": 8},
        "eagle": {"model": fake_head("eagle")},
        "eagle3": {"model": fake_head("eagle3"), "shape": "tree", "num_speculative_tokens": 5},
        "medusa": {"model": medusa},
        "draft_model": {"model": tiny_model(seed=1, num_layers=1)},
        "early_exit": {"exit_layer": 1, "num_speculative_tokens": 3},
    }


def configured(methods: dict[str, dict[str, Any]], *names: str) -> dict[str, Any]:
    """Options of an engine with these methods, the first its own."""
    first, *extra = ({"method": name, **methods.get(name, {})} for name in names)
    return {"speculative_config": first, "request_methods": extra}


@pytest.fixture(scope="module")
def llm(methods: dict[str, dict[str, Any]]) -> Iterator[LLM]:
    with LLM(TARGET, **configured(methods, *methods), max_num_seqs=24) as llm:
        yield llm


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_all_methods_in_one_batch_say_what_plain_decoding_says(
    llm: LLM, methods: dict[str, Any], params: SamplingParams
) -> None:
    prompts = [PROMPTS[2], PROMPTS[4]]
    with plain_llm(TARGET) as plain:
        wanted = ids_of(run(plain, params, prompts))
    requests = [(name, ids) for name in [*methods, "none"] for ids in prompts]
    answers = together(llm, requests, params)
    assert [answer.token_ids for answer in answers] == [[ids] for ids in wanted] * 11
    for (name, _), answer in zip(requests, answers, strict=True):
        stats = answer.output.stats
        assert stats.num_drafter_errors == 0
        assert stats.num_output_tokens == 60
        if name == "none":
            assert answer.counts == (60, 0, 0)
        elif name == "auto":
            assert answer.origins <= {"suffix", "eagle3", "suffix+eagle3"}
        else:
            assert stats.num_draft_tokens > 0
            assert answer.origins <= {name}
    used = {name for (name, _), answer in zip(requests, answers, strict=True) if answer.origins}
    assert used >= {"ngram", "suffix", "recycling", "lookahead", "draft_model", "early_exit"}


def test_drafts_are_those_of_an_engine_with_that_method_alone(methods: dict[str, Any]) -> None:
    """Token by token: nobody is given another's rows, features or verdicts. `auto` decides by time
    and is left out."""
    names = [name for name in methods if name != "auto"]
    with LLM(TARGET, **configured(methods, *names), max_num_seqs=24) as llm:
        mixed = together(llm, [(name, LONG) for name in names], GREEDY)
    for name, answer in zip(names, mixed, strict=True):
        with LLM(TARGET, **configured(methods, name)) as alone:
            (wanted,) = together(alone, [(name, LONG)], GREEDY)
        assert answer.drafted == wanted.drafted, name
        assert answer.counts == wanted.counts, name
        assert (
            answer.output.stats.accepted_per_position == wanted.output.stats.accepted_per_position
        )


def test_layers_are_captured_for_those_who_read_them(
    methods: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[tuple[int, ...]] = []
    forward = TARGET.decoder.forward

    def watched(batch: Any, cache: Any, capture: Any = ()) -> Any:
        captured.append(tuple(capture))
        return forward(batch, cache, capture)

    monkeypatch.setattr(TARGET.decoder, "forward", watched)

    def seen(llm: LLM, *names: str) -> set[tuple[int, ...]]:
        captured.clear()
        together(llm, [(name, LONG) for name in names], GREEDY)
        return set(captured)

    with LLM(TARGET, **configured(methods, "ngram", "eagle", "eagle3")) as llm:
        assert seen(llm, "ngram", "none") == {()}
        assert seen(llm, "ngram", "eagle") <= {(2,), ()}
        together_all = seen(llm, "ngram", "eagle", "eagle3")
    assert (0, 1, 2) in together_all
    assert together_all <= {(0, 1, 2), (2,), ()}


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@pytest.mark.parametrize("before", ["ngram", "none"])
def test_a_row_that_others_left_is_fed_again_for_a_head(
    methods: dict[str, Any], method: str, before: str
) -> None:
    names = (method, "ngram")
    with LLM(TARGET, **configured(methods, *names), max_num_seqs=1) as llm:
        (fresh,) = together(llm, [(method, LONG)], GREEDY)
    with LLM(TARGET, **configured(methods, *names), max_num_seqs=1) as llm:
        together(llm, [(before, LONG)], GREEDY)
        (first,) = together(llm, [(method, LONG)], GREEDY)
        (second,) = together(llm, [(method, LONG)], GREEDY)
        (other,) = together(llm, [(before, LONG)], GREEDY)
    cached = [each.output.metrics.num_cached_tokens for each in (first, second, other)]
    assert cached[0] == max(len(LONG) - 1 - MOST_REFED, 0), "the head has seen none of it"
    assert 0 < cached[1] < len(LONG)
    assert cached[2] == len(LONG) - 1, "no features needed: all that is cached will do"
    assert first.drafted == second.drafted == fresh.drafted
    assert fresh.drafted


def test_a_head_goes_on_from_where_it_knows_the_text(methods: dict[str, Any]) -> None:
    """Turn by turn with other methods: the target's row is longer than what the head has seen."""
    short = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(TARGET, **configured(methods, "eagle3", "ngram"), max_num_seqs=1) as llm:
        (one,) = together(llm, [("eagle3", LONG)], short)
        second_turn = [*LONG, *one.token_ids[0], 30, 31, 32]
        (two,) = together(llm, [("ngram", second_turn)], short)
        third_turn = [*second_turn, *two.token_ids[0], 40, 41]
        (three,) = together(llm, [("eagle3", third_turn)], GREEDY)
    with LLM(TARGET, **configured(methods, "eagle3"), max_num_seqs=1) as llm:
        (fresh,) = together(llm, [("eagle3", third_turn)], GREEDY)
    known = len(LONG) + len(one.token_ids[0])
    assert two.output.metrics.num_cached_tokens == known - 1
    assert len(LONG) - 1 <= three.output.metrics.num_cached_tokens < known
    assert three.token_ids == fresh.token_ids
    assert three.drafted == fresh.drafted


def test_a_head_that_took_over_what_it_has_not_seen_would_be_noticed(
    methods: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the two tests above."""
    adopt = EagleRows.adopt

    def trusting(self: EagleRows, seq: Sequence, source: Any, length: int) -> int:
        adopt(self, seq, source, length)
        return length

    with LLM(TARGET, **configured(methods, "eagle3", "ngram"), max_num_seqs=1) as llm:
        (fresh,) = together(llm, [("eagle3", LONG)], GREEDY)
    monkeypatch.setattr(EagleRows, "adopt", trusting)
    with LLM(TARGET, **configured(methods, "eagle3", "ngram"), max_num_seqs=1) as llm:
        together(llm, [("ngram", LONG)], GREEDY)
        (misled,) = together(llm, [("eagle3", LONG)], GREEDY)
    assert misled.token_ids == fresh.token_ids
    assert misled.drafted != fresh.drafted


def test_several_answers_to_a_prompt_share_it_whatever_drafts_beside_them(
    llm: LLM, methods: dict[str, Any]
) -> None:
    seeded = SamplingParams(temperature=0.9, seed=3, max_tokens=30, ignore_eos=True, n=3)
    with plain_llm(TARGET) as plain:
        (wanted,) = plain.generate([{"prompt_token_ids": LONG}], seeded)
    requests = [(name, LONG) for name in ("eagle3", "ngram", "medusa", "none", "lookahead")]
    answers = together(llm, requests, seeded)
    for answer in answers:
        assert answer.token_ids == [list(one.token_ids) for one in wanted.outputs]
        assert answer.output.stats.num_drafter_errors == 0


def named(name: str, propose: Callable[[Sequence, int], Draft]) -> type[Drafter]:
    """A scripted method of that name."""
    return type(name, (scripted(propose),), {"method_name": classmethod(lambda cls: name)})


def scripted_llm(*drafters: type[Drafter], **options: Any) -> LLM:
    first, *extra = ({"method": each, "num_speculative_tokens": 4} for each in drafters)
    return LLM(TARGET, speculative_config=first, request_methods=extra, **options)


@pytest.mark.parametrize("where", ["propose", "observe", "adopt"])
def test_a_method_that_fails_disturbs_only_its_own_requests(
    where: str, answers: dict[tuple[int, ...], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    def boom(self: Drafter, seqs: Any, *args: Any) -> Any:
        raise RuntimeError("boom")

    class Failing(named("failing", oracle(answers))):  # type: ignore[misc]
        pass

    setattr(Failing, where, boom)
    perfect, loose = named("perfect", oracle(answers)), named("loose", random_tokens(VOCAB))
    names = ["perfect", "failing", "loose", "failing", "perfect", "none", "perfect", "failing"]
    with scripted_llm(perfect, Failing, loose) as llm:
        found = together(llm, list(zip(names, PROMPTS, strict=True)), GREEDY)
    assert [answer.token_ids[0] for answer in found] == expected(answers)
    for name, answer in zip(names, found, strict=True):
        assert answer.output.stats.num_drafter_errors == (name == "failing")
        if name == "perfect":
            assert answer.counts == (12, 48, 48)
    assert "drafter Failing failed" in caplog.text
    assert "drafter perfect failed" not in caplog.text


def test_what_is_cancelled_at_random_leaves_nothing_behind(llm: LLM, methods: Any) -> None:
    """That nothing is held is checked whenever the engine is idle, and at its end."""
    with plain_llm(TARGET) as plain:
        wanted = dict(zip(map(tuple, PROMPTS), ids_of(run(plain)), strict=True))
    rng = random.Random(0)
    for _ in range(4):
        running = []
        for _ in range(8):
            prompt, name = rng.choice(PROMPTS), rng.choice([*methods, "none"])
            stream = llm.stream({"prompt_token_ids": prompt}, GREEDY, speculative={"method": name})
            running.append((prompt, stream))
        for prompt, stream in running:
            for _ in range(rng.randrange(12)):
                next(stream, None)
            if rng.random() < 0.5:
                stream.close()
            else:
                stream.drain()
            got = list(stream.output.outputs[0].token_ids)
            assert got == wanted[tuple(prompt)][: len(got)]
    assert llm.state().num_cached_tokens == 0


def test_a_shorter_draft_may_be_asked_of_any_method(methods: dict[str, Any]) -> None:
    with LLM(TARGET, **configured(methods, "eagle", "recycling")) as llm:
        for name in ("eagle", "recycling"):
            asked = {"method": name, "num_speculative_tokens": 1}
            stream = llm.stream({"prompt_token_ids": LONG}, GREEDY, speculative=asked)
            drafted = [len(event.drafted) for event in stream]
            assert max(drafted) == 1


def test_memory_is_planned_for_all_methods(methods: dict[str, Any]) -> None:
    options: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": 256}

    def needed(*names: str) -> int:
        """Bytes that one row takes, found by halving."""
        low, high = 0, 1 << 24
        while high - low > 1:
            middle = (low + high) // 2
            try:
                given = configured(methods, *names)
                LLM(TARGET, **given, kv_cache_bytes=middle, **options).close()
                high = middle
            except OptionError:
                low = middle
        return high

    plain, ngram = needed("none"), needed("none", "ngram")
    eagle, draft = needed("none", "eagle"), needed("none", "draft_model")
    assert ngram == plain < min(eagle, draft)
    assert needed("draft_model", "eagle", "ngram") == eagle + draft - plain


def test_methods_that_cannot_serve_this_target_are_refused(methods: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="'ngram' is the engine's own"):
        LLM(TARGET, **configured(methods, "ngram", "ngram"))
    other = {"method": "eagle", "model": fake_head("eagle", 200)}
    with pytest.raises(ModelError, match="knows token"):
        LLM(TARGET, speculative_config={"method": "none"}, request_methods=[other])
    with plain_llm(TARGET, request_methods=["ngram"]) as llm:
        with pytest.raises(OptionError, match="none, ngram"):
            llm.stream({"prompt_token_ids": PROMPT}, GREEDY, speculative={"method": "suffix"})
        (answer,) = together(llm, [("ngram", PROMPTS[4])], GREEDY)
    assert isinstance(answer, Answer)
    assert answer.output.stats.num_draft_tokens > 0
