"""Every variation that ModelConfig can name, against a transformer written out in float64."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from reference_model import reference_forward
from tiny import feed, layer_kind, random_weights, tiny_config

from outpace.cache import KVCache
from outpace.models.attention import KEY_BLOCK
from outpace.models.config import LayerKind, ModelConfig
from outpace.models.decoder import Decoder

EXACT = {"rtol": 1e-10, "atol": 1e-10}
WINDOW = 8
LAYER_NORM = {"norm": "layer", "qkv_bias": True, "o_bias": True, "mlp_bias": True}

FEATURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "biases of q, k and v": {"qkv_bias": True},
    "biases of o": {"o_bias": True},
    "biases of the mlp": {"mlp_bias": True},
    "layer norm": {"norm": "layer"},
    "norm offset": {"norm_offset": 1.0},
    "layer norm with offset": {"norm": "layer", "norm_offset": 1.0},
    "parallel": {"block": "parallel"},
    "sandwich": {"block": "sandwich"},
    "gelu": {"activation": "gelu"},
    "tanh gelu": {"activation": "gelu_tanh"},
    "not gated": {"gated_mlp": False},
    "not gated, silu and biases": {"gated_mlp": False, "mlp_bias": True},
    "norms of q and k": {"qk_norm": True},
    "norms of q and k with offset": {"qk_norm": True, "norm_offset": 1.0},
    "learned positions": {"learned_positions": True},
    "learned positions only": {
        "learned_positions": True,
        "layers": (layer_kind(theta=None),) * 2,
    },
    "embedding scale": {"embedding_scale": 32**0.5},
    "attention scale": {"attention_scale": 0.1},
    "capped scores": {"attention_softcap": 2.0},
    "capped logits": {"final_softcap": 3.0},
    "partial rotation": {"layers": (layer_kind(rotary_dim=4),) * 2},
    "attention factor": {"layers": (layer_kind(attention_factor=1.3),) * 2},
    "partial rotation with factor": {
        "layers": (layer_kind(rotary_dim=2, attention_factor=0.7),) * 2
    },
    "some layers without rotation": {
        "layers": (layer_kind(), layer_kind(theta=None), layer_kind())
    },
    "two rotations": {
        "layers": (layer_kind(theta=100.0), layer_kind(), layer_kind(theta=100.0, rotary_dim=4))
    },
    "window": {"layers": (layer_kind(window=WINDOW),) * 2},
    "window of one": {"layers": (layer_kind(window=1), layer_kind())},
    "windows here and there": {
        "layers": (layer_kind(window=WINDOW), layer_kind(), layer_kind(window=3))
    },
    "capped scores in windows": {
        "attention_softcap": 2.0,
        "layers": (layer_kind(window=WINDOW), layer_kind()),
    },
    "like GPT-2": LAYER_NORM
    | {
        "learned_positions": True,
        "layers": (layer_kind(theta=None),) * 2,
        "gated_mlp": False,
        "activation": "gelu_tanh",
        "tie_word_embeddings": True,
        "num_kv_heads": 4,
    },
    "like GPT-NeoX": LAYER_NORM
    | {
        "block": "parallel",
        "layers": (layer_kind(rotary_dim=2),) * 2,
        "gated_mlp": False,
        "activation": "gelu",
        "num_kv_heads": 4,
    },
    "like Gemma 2": {
        "block": "sandwich",
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "attention_softcap": 5.0,
        "final_softcap": 4.0,
        "attention_scale": 16**-0.5,
        "embedding_scale": 32**0.5,
        "tie_word_embeddings": True,
        "layers": (layer_kind(window=WINDOW), layer_kind()) * 2,
    },
    "like Gemma 3": {
        "block": "sandwich",
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "qk_norm": True,
        "embedding_scale": 32**0.5,
        "tie_word_embeddings": True,
        "layers": (*(layer_kind(window=WINDOW),) * 3, layer_kind(theta=1e6)),
    },
}
# What most sizes do is done by a few; the others are for the exhaustive run.
slow = partial(pytest.param, marks=pytest.mark.slow)
pytestmark = pytest.mark.usefixtures("unchecked_shapes_in_module")

WINDOWED = [name for name in FEATURES if "window" in name or "Gemma" in name]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from threads, and lose where other work wants the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


class Case:
    """A decoder, its cache of three open rows, and the reference of the same weights."""

    def __init__(self, name: str) -> None:
        self.config: ModelConfig = tiny_config(max_len=64, **FEATURES[name])
        self.weights = random_weights(self.config, seed=3)
        self._expected: dict[Any, torch.Tensor] = {}
        self.decoder = Decoder(self.config, self.weights.__getitem__, dtype=torch.float64)

    def new_cache(self, capacity: int = KEY_BLOCK) -> KVCache:
        cache = self.decoder.new_cache(num_rows=3, capacity=capacity)
        for _ in range(3):
            cache.open()
        # Slots that were never written must not matter.
        for tensor in (cache.k, cache.v):
            tensor.normal_(generator=torch.Generator().manual_seed(9))
        return cache

    def expected(self, tokens: list[int], parents: list[int] | None = None) -> torch.Tensor:
        key = (tuple(tokens), parents and tuple(parents))
        if key not in self._expected:
            self._expected[key] = reference_forward(self.config, self.weights, tokens, parents)[0]
        return self._expected[key]


_cases: dict[str, Case] = {}


@pytest.fixture(params=FEATURES, ids=lambda name: name.replace(" ", "-"))
def case(request: pytest.FixtureRequest) -> Case:
    return _cases.setdefault(request.param, Case(request.param))


@pytest.fixture(params=WINDOWED, ids=lambda name: name.replace(" ", "-"))
def windowed(request: pytest.FixtureRequest) -> Case:
    return _cases.setdefault(request.param, Case(request.param))


def random_tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(96) for _ in range(count)]


TOKENS = random_tokens(30)


def random_tree(num_nodes: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(max(-1, node - 5), node) for node in range(num_nodes)]


def path_to(node: int, parents: list[int]) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.mark.parametrize("size", [30, 1, 7, slow(2), slow(17)])
def test_a_text_in_passes_of_any_size(case, size):
    cache = case.new_cache()
    logits = [
        feed(case.decoder, cache, {0: TOKENS[start : start + size]})[0][0]
        for start in range(0, len(TOKENS), size)
    ]
    torch.testing.assert_close(torch.cat(logits), case.expected(TOKENS), **EXACT)


def test_captured_states(case):
    num_layers = case.config.num_hidden_layers
    states = reference_forward(case.config, case.weights, TOKENS)[1]
    _, hidden = feed(case.decoder, case.new_cache(), {0: TOKENS}, capture=range(num_layers + 1))
    assert sorted(hidden) == list(range(num_layers + 1))
    for layer, state in hidden.items():
        torch.testing.assert_close(state, states[layer], **EXACT)


@pytest.mark.usefixtures("checked_shapes")
def test_ragged_batches(case):
    texts = {0: random_tokens(24, 1), 1: random_tokens(9, 2), 2: random_tokens(30, 3)}
    cache = case.new_cache()
    feed(case.decoder, cache, {0: texts[0][:20], 2: texts[2][:3]})
    fed = {row: cache.length(row) for row in texts}
    logits, _ = feed(case.decoder, cache, {row: text[fed[row] :] for row, text in texts.items()})
    for row, text in texts.items():
        torch.testing.assert_close(logits[row], case.expected(text)[fed[row] :], **EXACT)


NUM_DRAFTED = 4


@pytest.mark.parametrize(
    "start",
    [*map(slow, range(WINDOW - NUM_DRAFTED, WINDOW - 1)), WINDOW - 1, WINDOW, WINDOW + 1],
)
def test_rollback_around_the_window(windowed, start):
    """After `start` tokens, drafts are appended and all but some of them forgotten, again and
    again, as a step does it."""
    expected = windowed.expected(TOKENS)
    for num_accepted in range(NUM_DRAFTED + 1):
        cache = windowed.new_cache()
        feed(windowed.decoder, cache, {0: TOKENS[:start]})
        while (length := cache.length(0)) + NUM_DRAFTED + 1 <= len(TOKENS):
            right = TOKENS[length : length + 1 + num_accepted]
            wrong = [(t + 1) % 96 for t in TOKENS[length + len(right) :]]
            block = [*right, *wrong][: NUM_DRAFTED + 1]
            logits, _ = feed(windowed.decoder, cache, {0: block})
            agreed = slice(length, length + len(right))
            torch.testing.assert_close(logits[0][: len(right)], expected[agreed], **EXACT)
            cache.rollback(0, length + len(right))


def test_rollback_to_every_length(case):
    cache = case.new_cache()
    expected = case.expected(TOKENS)
    feed(case.decoder, cache, {0: TOKENS})
    for length in range(len(TOKENS) - 1, -1, -3):
        cache.rollback(0, length)
        logits, _ = feed(case.decoder, cache, {0: TOKENS[length : length + 4]})
        torch.testing.assert_close(logits[0], expected[length : length + 4], **EXACT)


@pytest.mark.parametrize("num_nodes", [slow(1), slow(6), 15, 20])
def test_every_path_of_a_tree_is_a_chain(case, num_nodes):
    """15 nodes share a call with other rows, 20 do not."""
    before, nodes = TOKENS[:7], random_tokens(num_nodes, 5)
    parents = random_tree(num_nodes, num_nodes)
    cache = case.new_cache()
    feed(case.decoder, cache, {0: before})
    logits, _ = feed(case.decoder, cache, {0: nodes}, {0: parents})
    for leaf in set(range(num_nodes)) - set(parents):
        path = path_to(leaf, parents)
        expected = case.expected(before + [nodes[i] for i in path])
        torch.testing.assert_close(logits[0][path], expected[len(before) :], **EXACT)


@pytest.mark.usefixtures("checked_shapes")
def test_trees_and_chains_in_one_batch(case):
    before = {0: TOKENS[:12], 1: TOKENS[3:9], 2: TOKENS[5:20]}
    new = {0: random_tokens(9, 6), 1: random_tokens(4, 7), 2: random_tokens(13, 8)}
    parents = {0: random_tree(9, 1), 2: random_tree(13, 2)}
    cache = case.new_cache()
    feed(case.decoder, cache, before)
    logits, _ = feed(case.decoder, cache, new, parents)
    for row, nodes in new.items():
        num_before = len(before[row])
        tree = parents.get(row, range(-1, len(nodes) - 1))
        whole = [*range(-1, num_before - 1), *(p + num_before for p in tree)]
        expected = case.expected(before[row] + nodes, whole)[num_before:]
        torch.testing.assert_close(logits[row], expected, **EXACT)


def with_windows(config: ModelConfig, change: int) -> ModelConfig:
    def changed(kind: LayerKind) -> LayerKind:
        return kind if kind.window is None else replace(kind, window=kind.window + change)

    return replace(config, layers=tuple(changed(kind) for kind in config.layers))


def with_rope(config: ModelConfig, **change: Any) -> ModelConfig:
    def changed(kind: LayerKind) -> LayerKind:
        return kind if kind.rope is None else replace(kind, rope=replace(kind.rope, **change))

    return replace(config, layers=tuple(changed(kind) for kind in config.layers))


MUTATIONS: dict[str, tuple[str, Any]] = {
    "window one wider": ("like Gemma 2", lambda c: with_windows(c, 1)),
    "window one narrower": ("like Gemma 2", lambda c: with_windows(c, -1)),
    "window one wider where scores are not capped": ("window", lambda c: with_windows(c, 1)),
    "window one narrower where scores are not capped": ("window", lambda c: with_windows(c, -1)),
    "windows of other layers": ("like Gemma 2", lambda c: replace(c, layers=c.layers[::-1])),
    "scores not capped": ("like Gemma 2", lambda c: replace(c, attention_softcap=None)),
    "logits not capped": ("like Gemma 2", lambda c: replace(c, final_softcap=None)),
    "no norm offset": ("like Gemma 3", lambda c: replace(c, norm_offset=0.0)),
    "no norms of q and k": ("like Gemma 3", lambda c: replace(c, qk_norm=False)),
    "no embedding scale": ("like Gemma 3", lambda c: replace(c, embedding_scale=1.0)),
    "other attention scale": (
        "llama",
        lambda c: replace(c, attention_scale=0.35),
    ),
    "rotation in every layer": (
        "some layers without rotation",
        lambda c: replace(c, layers=(layer_kind(),) * 3),
    ),
    "one rotation for all": ("two rotations", lambda c: replace(c, layers=(c.layers[0],) * 3)),
    "no attention factor": ("attention factor", lambda c: with_rope(c, attention_factor=1.0)),
    "whole heads turn": ("partial rotation", lambda c: replace(c, layers=(layer_kind(),) * 2)),
    "no learned positions": ("like GPT-2", lambda c: replace(c, learned_positions=False)),
    "exact gelu": ("like GPT-2", lambda c: replace(c, activation="gelu")),
    "biases left out": ("like GPT-2", lambda c: replace(c, o_bias=False)),
    "in turn": ("like GPT-NeoX", lambda c: replace(c, block="pre")),
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_a_wrong_variation_would_be_seen(mutation):
    """Negative control: the reference of another configuration is far away."""
    name, mutate = MUTATIONS[mutation]
    case = Case(name)
    expected = case.expected(TOKENS)
    logits = feed(case.decoder, case.new_cache(), {0: TOKENS})[0][0]
    torch.testing.assert_close(logits, expected, **EXACT)
    wrong = reference_forward(mutate(case.config), case.weights, TOKENS)[0]
    assert (logits - wrong).abs().max() > 1e-5


def test_a_window_is_seen_where_it_begins_to_bite():
    """A window off by one changes nothing before the text is longer than the window, and every
    token from there on."""
    case = Case("window")
    logits = feed(case.decoder, case.new_cache(), {0: TOKENS})[0][0]
    wider = reference_forward(with_windows(case.config, 1), case.weights, TOKENS)[0]
    error = (logits - wider).abs().amax(-1)
    assert error[:WINDOW].max() < 1e-10
    assert error[WINDOW:].min() > 1e-7


@pytest.mark.parametrize("name", ["llama", "window", "like Gemma 2"])
def test_a_tree_fed_as_a_chain_would_be_seen(name):
    """Negative control: without the parents every node past the first branch comes out wrong."""
    case = Case(name)
    before, nodes, parents = TOKENS[:7], random_tokens(6, 5), [-1, 0, 0, 1, 2, -1]
    whole = [*range(-1, 6), *(p + 7 for p in parents)]
    expected = case.expected(before + nodes, whole)[7:]
    cache = case.new_cache()
    feed(case.decoder, cache, {0: before})
    wrong = feed(case.decoder, cache, {0: nodes})[0][0]
    error = (wrong - expected).abs().amax(-1)
    assert error[:2].max() < 1e-10
    assert error[2:].min() > 1e-5


@pytest.mark.parametrize("name", ["window", "capped scores", "like Gemma 2"])
def test_long_texts_whose_first_key_blocks_are_out_of_every_window(name):
    """Attention kernels meet whole blocks of keys that a query may not see."""
    changes = dict(FEATURES[name])
    config = tiny_config(max_len=4 * KEY_BLOCK, **changes)
    weights = random_weights(config, seed=3)
    decoder = Decoder(config, weights.__getitem__, dtype=torch.float64)
    tokens = random_tokens(3 * KEY_BLOCK, 11)
    cache = decoder.new_cache(num_rows=1, capacity=4 * KEY_BLOCK)
    cache.open()
    whole = feed(decoder, cache, {0: tokens})[0][0]
    assert torch.isfinite(whole).all()
    cache.rollback(0, len(tokens) - 5)
    torch.testing.assert_close(feed(decoder, cache, {0: tokens[-5:]})[0][0], whole[-5:], **EXACT)
    if all(kind.window for kind in config.layers):
        # What a token can depend on reaches back by window - 1 tokens a layer.
        reach = sum(kind.window - 1 for kind in config.layers) + 1
        unrelated = random_tokens(len(tokens) - reach, 12) + tokens[-reach:]
        cache.rollback(0, 0)
        other = feed(decoder, cache, {0: unrelated})[0][0]
        torch.testing.assert_close(other[-1], whole[-1], **EXACT)
        assert not torch.allclose(other[-2], whole[-2], **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_is_close(case, dtype):
    decoder = Decoder(case.config, case.weights.__getitem__, dtype=dtype)
    cache = decoder.new_cache(num_rows=1, capacity=KEY_BLOCK)
    cache.open()
    pieces = [feed(decoder, cache, {0: TOKENS[i : i + 5]})[0][0] for i in range(0, 30, 5)]
    logits, expected = torch.cat(pieces), case.expected(TOKENS)
    assert logits.dtype == torch.float32
    error = (logits - expected).abs()
    if dtype == torch.float32:
        assert error.max() < 1e-3
    else:
        assert error.mean() < 0.1 * expected.std()
