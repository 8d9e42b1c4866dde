"""Rounding ties told from wrong tokens, on tiny models with ties made on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from plain import plain_llm
from scripted import right_for, scripted
from tiny import fresh_logits, greedy_tokens, random_weights, tiny_config, tiny_tokenizer

from outpace import LLM, SamplingParams
from outpace.cache import common_prefix_len
from outpace.errors import OptionError
from outpace.measure.ties import Difference, classify_difference, rounding_tolerance
from outpace.models.decoder import Decoder
from outpace.models.load import DTYPES, LoadedModel
from outpace.runner import Runner
from outpace.types import Sequence

PROMPT = [5, 6, 7, 8, 9, 10, 11]
NUM_TOKENS = 40
DTYPE_NAMES = ["float64", "float32", "bfloat16"]


@pytest.fixture(scope="module", autouse=True)
def _unchecked_shapes(unchecked_shapes_in_module: None) -> None:
    """Many small passes, which the checks would make several times as slow."""


@cache
def model(dtype: str = "float32") -> LoadedModel:
    return _loaded(dtype, random_weights(tiny_config(), seed=1))


def _loaded(dtype: str, weights: dict[str, torch.Tensor], max_len: int = 256) -> LoadedModel:
    tokenizer, config = tiny_tokenizer(96), tiny_config(max_len=max_len)
    decoder = Decoder(config, weights.__getitem__, dtype=DTYPES[dtype], device="cpu", num_logits=96)
    return LoadedModel(decoder, tokenizer, f"tiny {dtype}", fingerprint=dtype)


def twin_model(dtype: str, token_id: int, twin_id: int, gap: float) -> LoadedModel:
    """The same model, in which `twin_id` has the logits of `token_id`, less about `gap` of them."""
    weights = random_weights(tiny_config(), seed=1)
    head = weights["lm_head.weight"].clone()
    head[twin_id] = head[token_id] * (1 - gap)
    return _loaded(dtype, weights | {"lm_head.weight": head})


def plain_ids(loaded: LoadedModel, count: int = NUM_TOKENS) -> list[int]:
    return greedy_tokens(loaded, PROMPT, count)


def ranked(loaded: LoadedModel, tokens: list[int]) -> list[int]:
    return fresh_logits(loaded, PROMPT + tokens).argsort(descending=True).tolist()


def classified(
    loaded: LoadedModel, plain: list[int], other: list[int], **options: Any
) -> Difference:
    found = classify_difference(loaded, PROMPT, plain, other, **options)
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("index", [0, 17, NUM_TOKENS - 1])
def test_two_nearly_equal_tokens_are_a_tie(dtype: str, index: int) -> None:
    """A head of which two rows are all but the same, and an answer that took the other one."""
    token_id = plain_ids(model(dtype))[index]
    twin_id = next(i for i in range(2, 96) if i not in plain_ids(model(dtype)))
    loaded = twin_model(dtype, token_id, twin_id, gap=2.0 ** -(53 if dtype == "float64" else 22))
    plain = plain_ids(loaded, index + 5)
    index = next(i for i, t in enumerate(plain) if t in (token_id, twin_id))
    other = [*plain[:index], token_id + twin_id - plain[index], 3]
    found = classified(loaded, plain, other)
    assert found.kind == "tie"
    assert found.index == index
    assert {found.plain_token, found.other_token} == {token_id, twin_id}
    assert {top.token_id for top in found.top_tokens[:2]} == {token_id, twin_id}
    assert found.gap is not None
    assert found.gap <= found.tolerance


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_the_same_pair_further_apart_is_a_violation(dtype: str) -> None:
    """Second best, and seen beside it: only the gap tells."""
    token_id = plain_ids(model(dtype))[0]
    twin_id = next(i for i in range(2, 96) if i not in plain_ids(model(dtype)))
    share = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.1}[dtype]
    loaded = twin_model(dtype, token_id, twin_id, gap=share)
    assert ranked(loaded, [])[:2] == [token_id, twin_id]
    found = classified(loaded, [token_id], [twin_id])
    assert found.kind == "violation"
    assert found.gap is not None
    assert found.gap == pytest.approx(share * found.top_tokens[0].logit, rel=0.1)
    assert found.gap > found.tolerance


def test_a_third_token_is_a_violation_however_close() -> None:
    """Three tokens within rounding of each other: the third is nobody's choice."""
    plain = plain_ids(model())
    first = plain[0]
    twins = [i for i in range(2, 96) if i not in plain][:2]
    weights = random_weights(tiny_config(), seed=1)
    head = weights["lm_head.weight"].clone()
    head[twins[0]] = head[first] * (1 - 2.0**-21)
    head[twins[1]] = head[first] * (1 - 2.0**-20)
    loaded = _loaded("float32", weights | {"lm_head.weight": head})
    assert ranked(loaded, [])[:3] == [first, *twins]
    second = classified(loaded, [first], [twins[0]])
    third = classified(loaded, [first], [twins[1]])
    assert second.kind == "tie"
    assert third.gap is not None
    assert third.gap <= third.tolerance
    assert third.kind == "violation"


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_planted_wrong_tokens_are_violations(dtype: str) -> None:
    """Second best tokens at many places: all that are not ties by chance are found, and in float64
    that is all of them."""
    loaded, plain = model(dtype), plain_ids(model(dtype))
    kinds = []
    for index in range(0, NUM_TOKENS, 7):
        second = ranked(loaded, plain[:index])[1]
        found = classified(loaded, plain, [*plain[:index], second])
        assert (found.index, found.plain_token, found.other_token) == (index, plain[index], second)
        kinds.append(found.kind)
    assert kinds.count("violation") >= (len(kinds) if dtype != "bfloat16" else 0.7 * len(kinds))


def test_a_stale_cache_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of a rejected token stay where those of the accepted one should be."""
    loaded = model("float32")
    wanted = plain_ids(loaded)
    propose = right_for({tuple(PROMPT): wanted}, 96, lambda seq: 1)
    config = {"method": scripted(propose), "num_speculative_tokens": 3}
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)

    def answer() -> list[int]:
        with LLM(loaded, speculative_config=config, max_num_seqs=1) as llm:
            return llm.generate([{"prompt_token_ids": PROMPT}], params)[0].outputs[0].token_ids

    assert classify_difference(loaded, PROMPT, wanted, answer()) is None
    commit = Runner.commit

    def off_by_one(self: Runner, seqs: Iterable[Sequence]) -> None:
        for seq in seqs:
            row = self._placements[seq.seq_id].row
            fed = self.cache.token_ids(row)
            kept = common_prefix_len(fed, seq.tokens)
            if kept < len(fed):
                self.cache.keep(row, kept - 1, [1])
                self.cache.token_ids(row)[kept - 1] = seq.tokens[kept - 1]
        commit(self, seqs)

    monkeypatch.setattr(Runner, "commit", off_by_one)
    got = answer()
    monkeypatch.undo()
    assert classified(loaded, wanted, got).kind == "violation"


def test_what_the_parameters_do_to_logits_is_done_here() -> None:
    loaded = model()
    best, second = ranked(loaded, [])[:2]
    logits = fresh_logits(loaded, PROMPT)
    lifted = SamplingParams(
        temperature=0, logit_bias={second: float(logits[best] - logits[second])}
    )
    assert classified(loaded, [best], [second]).kind == "violation"
    assert classified(loaded, [best], [second], params=lifted).kind == "tie"
    found = classified(loaded, [best], [second], params=SamplingParams(temperature=0, min_tokens=3))
    assert found.top_tokens[0].logit == pytest.approx(float(logits[best]))


@pytest.mark.parametrize(
    "changes", [{"repetition_penalty": 1.7, "bad_words": ["t"]}, {"frequency_penalty": 2.0}]
)
def test_penalties_see_prompt_and_output(changes: dict[str, Any]) -> None:
    """Plain answers with penalties are the best tokens, as seen with these penalties only."""
    loaded = model("float64")
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **changes)
    with plain_llm(loaded, max_num_seqs=1) as llm:
        plain = llm.generate([{"prompt_token_ids": PROMPT}], params)[0].outputs[0].token_ids
    wrong = 0
    for index in range(0, 24, 2):
        other = [*plain[:index], (plain[index] + 1) % 96]
        found = classified(loaded, plain, other, params=params)
        assert found.top_tokens[0].token_id == plain[index]
        wrong += classified(loaded, plain, other).top_tokens[0].token_id != plain[index]
    assert wrong > 2


@pytest.mark.parametrize(
    "changes",
    [
        {"allowed_token_ids": [2, 3, 4]},
        {"min_tokens": 4},
        {"structured_outputs": {"choice": ["eat", "tea"]}},
        {"bad_words": ["z"]},
    ],
)
def test_a_forbidden_token_is_a_violation(changes: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, **changes)
    allowed = 2  # the letter e
    forbidden = {"min_tokens": 0, "bad_words": 27}.get(next(iter(changes)), 9)
    found = classified(model(), [allowed], [forbidden], params=params)
    assert (found.kind, found.gap) == ("violation", None)
    assert forbidden not in [top.token_id for top in found.top_tokens]
    # Without the parameters both are tokens like any other.
    assert classified(model(), [allowed], [forbidden]).gap is not None


def test_answers_of_different_length() -> None:
    loaded, plain = model(), plain_ids(model())
    longer = classified(loaded, plain[:5], plain[:6])
    assert (longer.index, longer.plain_token, longer.other_token) == (5, None, plain[5])
    shorter = classified(loaded, plain[:6], plain[:5])
    assert (shorter.index, shorter.plain_token, shorter.other_token) == (5, plain[5], None)
    for found in (longer, shorter):
        assert (found.kind, found.gap) == ("violation", None)
    outside = classified(loaded, plain[:5], [*plain[:4], 1000])
    assert (outside.kind, outside.gap) == ("violation", None)


def test_nothing_to_classify() -> None:
    plain = plain_ids(model())
    assert classify_difference(model(), PROMPT, plain, list(plain)) is None
    with pytest.raises(OptionError, match=r"temperature=0\.7"):
        classify_difference(model(), PROMPT, plain, [], SamplingParams(temperature=0.7))


def test_a_long_prompt_is_fed_in_pieces() -> None:
    weights = random_weights(tiny_config(max_len=2048), seed=1)
    loaded = _loaded("float64", weights, max_len=2048)
    prompt = [2 + i * i % 94 for i in range(1100)]
    logits = fresh_logits(loaded, [*prompt, 7])
    found = classify_difference(loaded, prompt, [7, 8], [7, 9])
    assert found is not None
    assert found.top_tokens[0].token_id == int(logits.argmax())
    assert found.top_tokens[0].logit == pytest.approx(float(logits.max()), abs=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_stays_within_the_tolerance_and_not_far_below(dtype: str) -> None:
    """How far the gap of the two best tokens moves against float64, with weights that both hold."""
    weights = random_weights(tiny_config())
    for name, value in weights.items():
        # As large as trained layers have them: larger ones magnify errors from layer to layer.
        scale = 0.5 if value.ndim == 2 and ".layers." in name else 1.0
        weights[name] = (value * scale).bfloat16().double()
    exact, rounded = _loaded("float64", weights), _loaded(dtype, weights)
    moves, tolerances = [], []
    plain = plain_ids(exact)
    for index in range(NUM_TOKENS):
        a, b = (fresh_logits(each, PROMPT + plain[:index]).double() for each in (exact, rounded))
        best, second = a.topk(2).indices.tolist()
        moves.append(abs(float((a - b)[best] - (a - b)[second])))
        tolerances.append(rounding_tolerance(rounded, b.numpy()))
    assert all(move <= tolerance for move, tolerance in zip(moves, tolerances, strict=True))
    assert max(moves) > np.median(tolerances) / 20


def test_tolerances_by_format() -> None:
    logits = fresh_logits(model(), PROMPT).numpy()
    by_dtype = {name: rounding_tolerance(model(name), logits) for name in DTYPE_NAMES}
    assert by_dtype["float64"] < 1e-12 < by_dtype["float32"] < 1e-3 < by_dtype["bfloat16"] < 0.5
    # The native step computes the same bits however many rows there are; other code does not.
    native = replace(model(), model_impl="native")
    assert rounding_tolerance(native, logits) == 0.0
    elsewhere = rounding_tolerance(native, logits, other_arithmetic=True)
    assert elsewhere == by_dtype["float32"]
    token_id = plain_ids(model())[0]
    twin = twin_model("float32", token_id, 95, gap=2.0**-21)
    twin = replace(twin, model_impl="native")
    assert classified(twin, [token_id], [95]).kind == "violation"
    assert classified(twin, [token_id], [95], other_arithmetic=True).kind == "tie"
