"""EAGLE heads in torch: the arithmetic, column by column, and how drafts are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from eagle_heads import ReferenceHead, draft_vocabulary, head_config, head_weights
from scipy import stats
from tiny import tiny_model

from outpace.heads.base import BEST, Chooser
from outpace.heads.config import EagleConfig
from outpace.heads.eagle import EagleModule
from outpace.heads.target_parts import TargetParts
from outpace.heads.torch_runner import TorchEagle, choose
from outpace.models.attention import KEY_BLOCK, Segment
from outpace.models.rotation import Rotation, rotate

SIZES: dict[str, Any] = {"hidden_size": 32, "target_hidden_size": 32, "vocab_size": 107}
HEADS = [
    head_config(**SIZES),
    head_config(norm_before_residual=True, fc_norm=True, **SIZES),
    head_config(norm_before_fc=True, norm_output=True, feature_layers=(1, 2), **SIZES),
    head_config("eagle", **SIZES),
]
heads = pytest.mark.parametrize("config", HEADS, ids=["plain", "normed", "before_fc", "eagle"])
PARTS = TargetParts(tiny_model(vocab_size=107, hidden_size=32))


def opened(config: EagleConfig) -> TorchEagle:
    return TorchEagle(config, head_weights(config), PARTS, draft_vocabulary(config))


def reference(config: EagleConfig) -> ReferenceHead:
    embedding = PARTS.embedding_rows(range(config.vocab_size))
    return ReferenceHead(config, head_weights(config), embedding, PARTS.final_norm)


def captured(count: int, config: EagleConfig, seed: int = 0) -> tuple[list[int], np.ndarray]:
    """Tokens, and the target's features for their columns."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, config.feature_size), dtype=np.float32)
    return rng.integers(0, config.vocab_size, count).tolist(), features


def columns(count: int, config: EagleConfig, seed: int = 0) -> tuple[list[int], np.ndarray]:
    """Tokens, and what their columns start from."""
    tokens, features = captured(count, config, seed)
    return tokens, opened(config).fuse(features)


@heads
def test_columns_are_those_of_the_reference(config: EagleConfig) -> None:
    """Fed in chunks, and then a tree."""
    head, oracle = opened(config), reference(config)
    tokens, x = columns(20, config)
    wanted, wanted_outputs = oracle.chain(tokens, x)
    cache = head.new_cache(num_rows=2, capacity=KEY_BLOCK)
    found, outputs = [], []
    for begin, end in ((0, 7), (7, 8), (8, 20)):
        segment = Segment(1, begin, end - begin)
        rows = range(end - begin)
        logits, out = head.forward(cache, tokens[begin:end], x[begin:end], [segment], rows)
        found.append(logits)
        outputs.append(out)
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=2e-5)
    np.testing.assert_allclose(np.concatenate(outputs), wanted_outputs, atol=2e-5)

    parents = [-1, 0, 0, 1, -1, 4, 4, 6, 2]
    nodes, starts = columns(9, config, seed=1)
    logits, _ = head.forward(cache, nodes, starts, [Segment(1, 20, 9, tuple(parents))], range(9))
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        path = [] if parent < 0 else [*paths[parent], 20 + parent]
        paths.append(path)
        row, _ = oracle.column(nodes[node], starts[node], 20 + len(path), [*range(20), *path])
        np.testing.assert_allclose(logits[node], row, atol=2e-5)


@heads
def test_the_torch_module_is_the_same_network(config: EagleConfig) -> None:
    module = EagleModule(config).double()
    weights = {name: tensor.double() for name, tensor in head_weights(config).items()}
    module.load_state_dict(weights, strict=True)
    tokens, x = columns(12, config)
    rotation = Rotation(config.rope, config.head_dim, torch.float64, "cpu")
    rotation.reach(12)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        turned = rotation(torch.arange(12))
        q, k = rotate(q, *turned), rotate(k, *turned)
        group = q.shape[1] // k.shape[1]
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(0, 1).flatten(1)

    embedded = torch.from_numpy(PARTS.embedding_rows(tokens)).double()
    with torch.no_grad():
        outputs = module(torch.from_numpy(x).double(), embedded, attend)
        logits = module.logits(outputs)
    wanted, wanted_outputs = reference(config).chain(tokens, x)
    np.testing.assert_allclose(logits.numpy(), wanted, atol=2e-6)
    np.testing.assert_allclose(module.next_input(outputs).detach(), wanted_outputs, atol=2e-6)


@heads
def test_a_chain_is_step_by_step_forward(config: EagleConfig) -> None:
    head, vocabulary = opened(config), draft_vocabulary(config)
    tokens, features = captured(5, config)
    cache = head.new_cache(num_rows=1, capacity=KEY_BLOCK)
    drafted = head.draft(cache, [0], [0], [tokens], features, [4], [BEST])
    feed, at, wanted, x = tokens, 0, [], head.fuse(features)
    cache = head.new_cache(num_rows=1, capacity=KEY_BLOCK)
    for _ in range(4):
        logits, out = head.forward(cache, feed, x, [Segment(0, at, len(feed))], [len(feed) - 1])
        wanted.append(int(vocabulary[logits[0].argmax()]))
        at, feed, x = at + len(feed), wanted[-1:], out[-1:]
    assert drafted.token_ids == [wanted]
    assert drafted.q == [None]


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 1]])
def test_sequences_do_not_meet(rows: list[int]) -> None:
    config = HEADS[0]
    head = opened(config)
    texts = [captured(n, config, seed=n) for n in (3, 6, 1)]
    counts, choosers = [2, 4, 1], [BEST, Chooser(0.8, [0.1, 0.9, 0.4, 0.6]), BEST]
    alone = []
    for (tokens, features), count, chooser in zip(texts, counts, choosers, strict=True):
        cache = head.new_cache(num_rows=1, capacity=KEY_BLOCK)
        alone.append(head.draft(cache, [0], [0], [tokens], features, [count], [chooser]))
    cache = head.new_cache(num_rows=3, capacity=KEY_BLOCK)
    joined = np.concatenate([features for _, features in texts])
    pending = [tokens for tokens, _ in texts]
    made = head.draft(cache, rows, [0, 0, 0], pending, joined, counts, choosers)
    assert made.token_ids == [one.token_ids[0] for one in alone]
    assert [len(ids) for ids in made.token_ids] == counts
    assert made.q[0] is None
    np.testing.assert_allclose(made.q[1], alone[1].q[0], atol=1e-5)


def expected(q: np.ndarray) -> np.ndarray:
    """How often each token comes in 20,000 draws."""
    exact = q.astype(np.float64)
    return 20_000 * exact / exact.sum()


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_tokens_are_drawn_from_the_distribution_that_is_claimed(temperature: float) -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal(9).astype(np.float32) * 2
    draws = [choose(logits, Chooser(temperature, [coin]), 0) for coin in rng.random(20_000)]
    counts = np.bincount([token for token, _ in draws], minlength=9)
    claimed = draws[0][1]
    assert claimed is not None
    assert claimed.sum() == pytest.approx(1, abs=1e-6)
    assert stats.chisquare(counts, expected(claimed)).pvalue > 1e-4
    # What it was not drawn from is told apart.
    _, other = choose(logits, Chooser(temperature * 1.15, [0.5]), 0)
    assert other is not None
    assert stats.chisquare(counts, expected(other)).pvalue < 1e-6


def test_rows_can_be_forked() -> None:
    config = HEADS[0]
    head = opened(config)
    tokens, x = columns(8, config)
    cache = head.new_cache(num_rows=2, capacity=KEY_BLOCK)
    row, _ = cache.open()
    head.forward(cache, tokens, x, [Segment(row, 0, 8)], [])
    cache.append(row, tokens)
    copy = cache.fork(row, 5)
    for one in (row, copy):
        logits, _ = head.forward(cache, tokens[5:], x[5:], [Segment(one, 5, 3)], [2])
        if one == row:
            wanted = logits
    np.testing.assert_array_equal(logits, wanted)


def test_a_path_that_is_kept_is_a_chain() -> None:
    """Nodes 0, 2 and 3 of a tree are moved together; what follows sees them as fed one by one."""
    config = HEADS[0]
    head = opened(config)
    tokens, x = columns(9, config)
    found = []
    for parents, path in (((-1, 0, 0, 2), [0, 2, 3]), (None, [0, 1, 2])):
        cache = head.new_cache(num_rows=1, capacity=KEY_BLOCK)
        row, _ = cache.open()
        fed = [0, 1, 2, 3, 4, 5, 6, 7] if parents else [0, 1, 2, 3, 4, 6, 7]
        segments = [Segment(row, 0, 4), Segment(row, 4, len(fed) - 4, parents)]
        for segment in segments:
            ids = fed[segment.slots]
            head.forward(cache, [tokens[i] for i in ids], x[ids], [segment], [])
            cache.append(row, [tokens[i] for i in ids])
        cache.keep(row, 4, path)
        assert list(cache.token_ids(row)) == [tokens[i] for i in (0, 1, 2, 3, 4, 6, 7)]
        logits, _ = head.forward(cache, tokens[8:], x[8:], [Segment(row, 7, 1)], [0])
        found.append(logits)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_a_claim_is_the_law_of_the_logits() -> None:
    config = HEADS[0]
    head = opened(config)
    tokens, features = captured(5, config)
    cache = head.new_cache(num_rows=1, capacity=KEY_BLOCK)
    chooser = Chooser(0.7, [0.9, 0.5, 0.1])
    drafted = head.draft(cache, [0], [0], [tokens], features, [3], [chooser])
    x = head.fuse(features)
    logits, out = head.forward(cache, tokens, x, [Segment(0, 0, 5)], [4])
    for step, (token, q) in enumerate(zip(drafted.token_ids[0], drafted.q[0], strict=True)):
        law = np.exp(logits[0].astype(np.float64) / 0.7)
        law /= law.sum()
        np.testing.assert_allclose(q, law, atol=1e-6)
        index = int(np.searchsorted(np.cumsum(law), (0.9, 0.5, 0.1)[step]))
        assert token == draft_vocabulary(config)[index]
        logits, out = head.forward(cache, [token], out[-1:], [Segment(0, 5 + step, 1)], [0])


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_a_head_runs_in_its_targets_dtype(dtype: str, most: float) -> None:
    config = HEADS[0]
    parts = TargetParts(tiny_model(vocab_size=107, hidden_size=32, dtype=dtype))
    head = TorchEagle(config, head_weights(config), parts, draft_vocabulary(config))
    cache = head.new_cache(num_rows=2, capacity=KEY_BLOCK)
    assert cache.k.dtype == getattr(torch, dtype)
    assert head.kv_bytes(num_rows=2, capacity=KEY_BLOCK) == cache.num_bytes
    tokens, x = columns(6, config)
    logits, _ = head.forward(cache, tokens, x, [Segment(1, 0, 6)], range(6))
    wanted, _ = reference(config).chain(tokens, x)
    assert logits.dtype == np.float32
    error = np.abs(logits - wanted).max() / np.abs(wanted).max()
    assert error < most
