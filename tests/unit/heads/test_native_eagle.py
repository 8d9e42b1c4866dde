"""EAGLE heads on the native step: the arithmetic, the bits, and the law of what is drawn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as List
from typing import Any

import numpy as np
import pytest
import torch
from eagle_heads import ReferenceHead, draft_vocabulary, head_config, head_weights
from native_models import loaded, odd_model, opened, random_tree, some_tokens
from scipy import stats
from tiny import tiny_model

from outpace.errors import ModelError
from outpace.heads.base import BEST, Chooser, EagleRunner, Race
from outpace.heads.config import EagleConfig
from outpace.heads.native import NativeEagle
from outpace.heads.target_parts import TargetParts
from outpace.heads.torch_runner import TorchEagle
from outpace.models.attention import Segment
from outpace.native.interface import Activations, KVType, WeightFormat
from outpace.native.library import status
from outpace.verification import coupled

found = status()
pytestmark = pytest.mark.skipif(found.path is None, reason=f"no native step: {found.reason}")

EXACT: dict[str, Any] = {"weight_format": WeightFormat.F32, "kv_type": KVType.F32}
FORMATS: list[dict[str, Any]] = [
    EXACT,
    {"weight_format": WeightFormat.BF16},
    {"activations": Activations.INT16},
    {"weight_format": WeightFormat.Q8_0, "activations": Activations.INT8},
]
HEADS = [
    head_config(),
    head_config(norm_before_residual=True, fc_norm=True),
    head_config(norm_before_fc=True, norm_output=True, feature_layers=(1, 2)),
    head_config(hidden_size=96, num_attention_heads=4, num_key_value_heads=4, head_dim=24),
    head_config("eagle"),
]


def parts_of(threads: int = 2) -> TargetParts:
    return TargetParts(loaded(odd_model("bfloat16", threads=threads)))


def new_head(config: EagleConfig, parts: TargetParts | None = None, **options: Any) -> NativeEagle:
    vocabulary = draft_vocabulary(config)
    return NativeEagle(config, head_weights(config), parts or parts_of(), vocabulary, **options)


def reference(config: EagleConfig) -> ReferenceHead:
    parts = parts_of()
    embedding = parts.embedding_rows(range(config.vocab_size))
    return ReferenceHead(config, head_weights(config), embedding, parts.final_norm)


def features(count: int, config: EagleConfig, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, config.feature_size), dtype=np.float32)


def feed(
    head: NativeEagle,
    cache: Any,
    row: int,
    token_ids: List[int],
    x: np.ndarray,
    parents: List[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and outputs of new columns of one row."""
    start = cache.length(row)
    cache.append(row, token_ids)
    tree = None if parents is None else tuple(parents)
    segment = Segment(row, start, len(token_ids), tree)
    return head.forward(cache, token_ids, x, [segment], range(len(token_ids)))


def draft(
    head: EagleRunner,
    pending: List[List[int]],
    captured: List[np.ndarray],
    counts: List[int],
    choosers: List[Chooser] | None = None,
) -> Any:
    """Drafts from empty rows, the argmax unless `choosers` say otherwise."""
    cache = head.new_cache(num_rows=len(pending), capacity=256)
    return head.draft(
        cache,
        range(len(pending)),
        [0] * len(pending),
        pending,
        np.concatenate(captured),
        counts,
        choosers or [BEST] * len(pending),
    )


def race(vocabulary: np.ndarray, keys: List[int], temperature: float) -> Chooser:
    """A race as a drafter sets it up, over all of the head's tokens."""

    def winner(logits: np.ndarray, number: int) -> int:
        weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
        uniform = coupled._uniform(vocabulary.astype(np.uint64), keys[number])
        return int((-np.log1p(-uniform) / weights).argmin())

    return Chooser(temperature, race=Race(keys, winner))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("config", HEADS)
def test_it_computes_what_the_reference_does(config: EagleConfig) -> None:
    head, exact = new_head(config, **EXACT), reference(config)
    captured, tokens = features(24, config), some_tokens(24)
    x, wanted_x = head.fuse(captured), exact.fuse(captured)
    np.testing.assert_allclose(x, wanted_x, rtol=2e-5, atol=2e-5)
    logits, outputs = feed(head, opened(head), 0, tokens, x)
    wanted_logits, wanted_outputs = exact.chain(tokens, wanted_x)
    np.testing.assert_allclose(outputs, wanted_outputs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits, wanted_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", HEADS)
def test_both_runners_draft_the_same(config: EagleConfig) -> None:
    """The one in torch, for other targets, has the same conventions."""
    parts = parts_of()
    other = TorchEagle(config, head_weights(config), parts, draft_vocabulary(config))
    tokens, captured = some_tokens(7), features(7, config)
    noise = race(draft_vocabulary(config), [2**63 + 5, 7], 0.8)
    choosers = [BEST, Chooser(0.9, [0.2, 0.8, 0.5]), noise]
    drafts = []
    for head in (new_head(config, parts, **EXACT), other):
        pending, own = [tokens[:3], tokens[3:5], tokens[5:]], np.split(captured, [3, 5])
        drafts.append(draft(head, pending, own, [4, 3, 2], choosers))
    assert drafts[0].token_ids == drafts[1].token_ids
    np.testing.assert_allclose(drafts[0].q[1], drafts[1].q[1], rtol=1e-3, atol=1e-5)


def test_an_embedding_of_its_own_takes_the_place_of_the_targets() -> None:
    config, parts = HEADS[0], parts_of()
    embedding = torch.from_numpy(features(config.vocab_size, head_config("eagle")))
    weights = head_weights(config) | {"embed_tokens.weight": embedding}
    head = NativeEagle(config, weights, parts, draft_vocabulary(config), **EXACT)
    exact = ReferenceHead(config, weights, embedding.numpy(), parts.final_norm)
    captured, tokens = features(9, config), some_tokens(9)
    logits, _ = feed(head, opened(head), 0, tokens, head.fuse(captured))
    wanted, _ = exact.chain(tokens, exact.fuse(captured))
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "flag", ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"]
)
def test_every_flag_changes_what_is_computed(flag: str) -> None:
    """The comparison with the reference would notice a flag that is not read."""
    plain, changed = (reference(head_config(**{flag: value})) for value in (False, True))
    captured, tokens = features(3, plain.config), some_tokens(3)
    one, other = (
        np.concatenate(each.chain(tokens, each.fuse(captured)), axis=1) for each in (plain, changed)
    )
    assert not np.allclose(one, other, atol=1e-2)


@pytest.mark.parametrize("config", HEADS)
def test_a_greedy_draft_is_the_chain_of_argmaxes(config: EagleConfig) -> None:
    head, exact = new_head(config, **EXACT), reference(config)
    captured, tokens = features(9, config), some_tokens(9)
    ((drafted,), (q,)) = _unpacked(draft(head, [tokens], [captured], [6]))
    assert q is None
    logits, outputs = exact.chain(tokens, exact.fuse(captured))
    vocabulary = draft_vocabulary(config)
    wanted: list[int] = []
    for _ in range(6):
        wanted.append(int(vocabulary[logits[-1].argmax()]))
        logits, outputs = exact.chain(wanted[-1:], outputs[-1:])
    assert drafted == wanted
    assert len(set(drafted)) > 1


def _unpacked(drafted: Any) -> tuple[list[list[int]], list[Any]]:
    return drafted.token_ids, drafted.q


@pytest.mark.parametrize("options", FORMATS)
@pytest.mark.parametrize("config", [HEADS[1], HEADS[2], HEADS[4]])
def test_a_draft_is_what_single_passes_give(config: EagleConfig, options: dict[str, Any]) -> None:
    """Bit for bit: ids, q, and the columns left in the cache."""
    head = new_head(config, **options)
    tokens, captured = some_tokens(5), features(5, config)
    x = head.fuse(captured)
    coins, temperature = [0.1, 0.55, 0.93, 0.3], 0.8
    cache = opened(head, num_rows=1)
    chooser = Chooser(temperature, coins)
    result = head.draft(cache, [0], [0], [tokens], captured, [4], [chooser])
    ids, q = result.token_ids[0], result.q[0]
    assert q is not None
    vocabulary = draft_vocabulary(config)
    stepwise = opened(head)
    logits, outputs = feed(head, stepwise, 0, tokens, x)
    for step, coin in enumerate(coins):
        shifted = (logits[-1] - logits[-1].max()) / np.float32(temperature)
        wanted = np.exp(shifted, dtype=np.float32)
        np.testing.assert_allclose(q[step], wanted / wanted.sum(), rtol=3e-6, atol=1e-9)
        sums = np.cumsum(q[step], dtype=np.float64)
        assert ids[step] == vocabulary[np.searchsorted(sums, coin * sums[-1], side="right")]
        logits, outputs = feed(head, stepwise, 0, ids[step : step + 1], outputs[-1:])
    cache.append(0, [*tokens, *ids[:3]])
    same = feed(head, cache, 0, [ids[3]], x[:1])
    stepwise.rollback(0, 8)
    again = feed(head, stepwise, 0, [ids[3]], x[:1])
    assert all(map(same_bits, same, again))


@pytest.mark.parametrize("temperature", [1e-50, 1e39])
def test_temperatures_beyond_float32_are_held_to_it(temperature: float) -> None:
    config = HEADS[1]
    head, captured = new_head(config), features(5, config)
    chooser = Chooser(temperature, [0.1, 0.9])
    made = head.draft(opened(head), [0], [0], [some_tokens(5)], captured, [2], [chooser])
    assert len(made.token_ids[0]) == 2
    assert made.q[0] is not None
    np.testing.assert_allclose(made.q[0].sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("options", FORMATS)
def test_bits_do_not_depend_on_company_chunks_or_threads(options: dict[str, Any]) -> None:
    config = HEADS[1]
    head, single = new_head(config, **options), new_head(config, parts_of(1), **options)
    tokens, captured = some_tokens(41), features(41, config)
    x = head.fuse(captured)
    assert same_bits(x[:1], head.fuse(captured[:1]))
    whole = feed(head, opened(head), 0, tokens, x)
    assert all(map(same_bits, whole, feed(single, opened(single), 0, tokens, x)))
    cache, start = opened(head, num_rows=3), 0
    for size in (1, 2, 3, 7, 1, 9, 18):
        end = start + size
        others = some_tokens(2 + size % 3, seed=size)
        segments = [Segment(2, start, len(others)), Segment(1, start, size)]
        joined = np.concatenate([features(len(others), config)[:, :96], x[start:end]])
        logits, outputs = head.forward(
            cache, [*others, *tokens[start:end]], joined, segments, range(len(joined))
        )
        assert same_bits(logits[len(others) :], whole[0][start:end])
        assert same_bits(outputs[len(others) :], whole[1][start:end])
        start = end


def test_trees_are_their_paths() -> None:
    config = HEADS[0]
    head, exact = new_head(config), reference(config)
    rng = np.random.default_rng(3)
    tokens = some_tokens(16)
    x = head.fuse(features(16, config))
    whole = feed(head, opened(head), 0, tokens, x)
    ids, parents, nodes = random_tree(rng, tokens[9:])
    tree_x = features(len(ids), config)[:, :96].copy()
    tree_x[nodes] = x[9:]
    cache = opened(head)
    feed(head, cache, 0, tokens[:9], x[:9])
    logits, outputs = feed(head, cache, 0, ids, tree_x, parents)
    assert same_bits(logits[nodes], whole[0][9:])
    assert same_bits(outputs[nodes], whole[1][9:])
    cache.keep(0, 9, nodes)
    after = feed(head, cache, 0, tokens[:2], x[:2])
    fed = opened(head)
    feed(head, fed, 0, tokens, x)
    assert all(map(same_bits, after, feed(head, fed, 0, tokens[:2], x[:2])))
    _check_nodes(new_head(config, **EXACT), exact, ids, tree_x, parents)


def _check_nodes(
    head: NativeEagle, exact: ReferenceHead, ids: List[int], x: np.ndarray, parents: List[int]
) -> None:
    """Every node of a tree after four columns, against the reference."""
    first = some_tokens(4, seed=1)
    cache = opened(head)
    feed(head, cache, 0, first, x[:4])
    exact.chain(first, x[:4])
    logits, _ = feed(head, cache, 0, ids, x, parents)
    paths: list[list[int]] = []
    for i, parent in enumerate(parents):
        above = paths[parent] if parent >= 0 else []
        wanted, _ = exact.column(
            ids[i], x[i], 4 + len(above), [*range(4), *(4 + node for node in above)]
        )
        paths.append([*above, i])
        np.testing.assert_allclose(logits[i], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", FORMATS)
def test_a_draft_of_several_sequences_is_each_alone(options: dict[str, Any]) -> None:
    config = HEADS[1]
    head = new_head(config, **options)
    lengths, counts = [3, 1, 12, 2], [2, 5, 1, 4]
    pending = [some_tokens(n, seed=n) for n in lengths]
    captured = [features(n, config, seed=n) for n in lengths]
    choosers = [
        Chooser(0.7, [0.2, 0.9]),
        BEST,
        race(draft_vocabulary(config), [99], 1.0),
        Chooser(1.3, [0.01, 0.4, 0.6, 0.999]),
    ]
    together = draft(head, pending, captured, counts, choosers)
    for i, count in enumerate(counts):
        alone = draft(head, pending[i : i + 1], captured[i : i + 1], [count], choosers[i : i + 1])
        assert together.token_ids[i] == alone.token_ids[0]
        assert len(alone.token_ids[0]) == count
        if choosers[i].coins:
            assert together.q[i].shape == (count, config.draft_vocab_size)
            assert same_bits(together.q[i], alone.q[0])
        else:
            assert together.q[i] is None


def test_drawn_tokens_follow_q() -> None:
    """And not another distribution: the one at a slightly different temperature is found out."""
    config = HEADS[0]
    head = new_head(config)
    rng = np.random.default_rng(0)
    num, pending = 3000, some_tokens(2)
    captured = features(2, config)
    choosers = [Chooser(0.9, coins) for coins in rng.random((num, 1)).tolist()]
    result = draft(head, [pending] * num, [captured] * num, [1] * num, choosers)
    q = result.q[0][0]
    assert all(same_bits(q, each[0]) for each in result.q)
    assert abs(q.sum(dtype=np.float64) - 1) < 1e-6
    places = np.searchsorted(draft_vocabulary(config), [ids[0] for ids in result.token_ids])
    counts = np.bincount(places, minlength=len(q))
    wrong = q ** np.float32(0.9 / 1.3)
    assert _fit(counts, q) > 1e-4
    assert _fit(counts, wrong / wrong.sum()) < 1e-6


def _fit(counts: np.ndarray, law: np.ndarray) -> float:
    """p-value of a chi-square test, rare tokens taken together."""
    expected = law.astype(np.float64) / law.sum(dtype=np.float64) * counts.sum()
    rare = expected < 5
    groups = [
        np.append(values[~rare], values[rare].sum() if rare.any() else [])
        for values in (counts, expected)
    ]
    return float(stats.chisquare(*groups).pvalue)


def test_coins_at_the_ends_and_on_the_steps() -> None:
    """The first token whose sum exceeds the coin, never one of probability 0."""
    config = HEADS[0]
    weights = head_weights(config)
    weights["lm_head.weight"][[0, 5, 42]] *= 300
    head = NativeEagle(config, weights, parts_of(), draft_vocabulary(config))
    captured, tokens = features(1, config), some_tokens(1)
    one = draft(head, [tokens], [captured], [1], [Chooser(0.05, [0.5])])
    q = one.q[0][0]
    assert np.count_nonzero(q) < len(q)
    sums = np.cumsum(q, dtype=np.float64)
    coins = [0.0, np.nextafter(1.0, 0.0), *(float(s / sums[-1]) for s in sums[q > 0][:-1])]
    num = len(coins)
    choosers = [Chooser(0.05, [coin]) for coin in coins]
    drawn = draft(head, [tokens] * num, [captured] * num, [1] * num, choosers)
    places = np.searchsorted(draft_vocabulary(config), list(itertools.chain(*drawn.token_ids)))
    assert (q[places] > 0).all()
    assert places[0] == np.flatnonzero(q)[0]
    assert places[1] == np.flatnonzero(q)[-1]


def test_a_temperature_close_to_zero_is_the_argmax() -> None:
    config = HEADS[0]
    head = new_head(config)
    tokens, captured = some_tokens(3), features(3, config)
    greedy = draft(head, [tokens], [captured], [4])
    cold = draft(head, [tokens], [captured], [4], [Chooser(1e-30, [0.9] * 4)])
    raced = race(draft_vocabulary(config), [1, 2, 3, 4], 1e-30)
    assert cold.token_ids == greedy.token_ids
    assert draft(head, [tokens], [captured], [4], [raced]).token_ids == greedy.token_ids
    assert (cold.q[0].max(axis=1) == 1).all()


def test_logits_that_are_not_finite() -> None:
    config = HEADS[0]
    weights = head_weights(config)
    weights["lm_head.weight"][7] = float("nan")
    head = NativeEagle(config, weights, parts_of(), draft_vocabulary(config), **EXACT)
    tokens, captured = some_tokens(1), features(1, config)
    for chooser in (Chooser(1.0, [0.5]), race(draft_vocabulary(config), [1], 1.0)):
        with pytest.raises(ModelError, match="sequence 0, draft step 0: the head's logits are not"):
            draft(head, [tokens], [captured], [1], [chooser])
    assert len(draft(head, [tokens], [captured], [2]).token_ids[0]) == 2


def test_a_race_is_the_one_by_which_targets_choose() -> None:
    """With each key the token of `coupled.choose`, which follows the softmax over keys; another
    temperature or noise is found out."""
    config = HEADS[0]
    head, vocabulary = new_head(config), draft_vocabulary(config)
    num, tokens, captured = 3000, some_tokens(2), features(2, config)
    law = draft(head, [tokens], [captured], [1], [Chooser(0.9, [0.5])]).q[0][0]
    weights = np.zeros(config.vocab_size, np.float32)
    weights[vocabulary] = law
    keys = [coupled.noise_key(5, 1, position) for position in range(num)]
    choosers = [race(vocabulary, [key], 0.9) for key in keys]
    result = draft(head, [tokens] * num, [captured] * num, [1] * num, choosers)
    won = [ids[0] for ids in result.token_ids]
    assert won == [coupled.choose(weights, 5, 1, position) for position in range(num)]
    assert won != [coupled.choose(weights, 5, 2, position) for position in range(num)]
    assert all(q is None for q in result.q)
    counts = np.bincount(np.searchsorted(vocabulary, won), minlength=len(law))
    wrong = law ** np.float32(0.9 / 1.3)
    assert _fit(counts, law) > 1e-4
    assert _fit(counts, wrong / wrong.sum()) < 1e-6


def test_targets_it_does_not_go_with() -> None:
    config = head_config(hidden_size=64, target_hidden_size=96)
    with pytest.raises(ModelError, match="107 rows of 64 channels, but odd has 107 of 96"):
        new_head(config)
    with pytest.raises(ModelError, match="runs on the torch decoder"):
        new_head(head_config(), TargetParts(tiny_model()))


def test_it_is_an_eagle_runner_that_keeps_nothing_of_the_callers() -> None:
    config = HEADS[0]
    weights, vocabulary = head_weights(config), draft_vocabulary(config)
    head = NativeEagle(config, weights, parts_of(), vocabulary, **EXACT)
    x, tokens = head.fuse(features(3, config)), some_tokens(3)
    before = feed(head, opened(head), 0, tokens, x)
    for tensor in weights.values():
        tensor.fill_(9.0)
    assert all(map(same_bits, before, feed(head, opened(head), 0, tokens, x)))
    assert head.kv_bytes(num_rows=2, capacity=64) == opened(head, 2, 64).num_bytes
    np.testing.assert_array_equal(head.draft_token_ids, vocabulary)
