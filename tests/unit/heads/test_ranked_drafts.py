"""What a head ranks beside a greedy chain is what its logits, pass by pass, say."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from typing import Any

import numpy as np
import pytest
import torch
from eagle_heads import draft_vocabulary, head_config, head_weights
from native_models import loaded, odd_model, some_tokens

from outpace.errors import ModelError
from outpace.heads.base import BEST, EagleRunner, HeadDraft
from outpace.heads.config import EagleConfig
from outpace.heads.native import NativeEagle
from outpace.heads.target_parts import TargetParts
from outpace.heads.torch_runner import TorchEagle
from outpace.models.attention import Segment
from outpace.native.interface import Activations, KVType, WeightFormat
from outpace.native.library import status

found = status()
pytestmark = pytest.mark.skipif(found.path is None, reason=f"no native step: {found.reason}")

EAGLE3, EAGLE1 = head_config(fc_norm=True), head_config("eagle")
LENGTHS, COUNTS = [3, 1, 12, 2], [2, 5, 1, 4]
Maker = Callable[..., EagleRunner]
Level = tuple[list[int], list[float]]


def in_torch(config: EagleConfig, weights: dict[str, Any]) -> EagleRunner:
    parts = TargetParts(loaded(odd_model("bfloat16")))
    return TorchEagle(config, weights, parts, draft_vocabulary(config))


def natively(threads: int = 2, **options: Any) -> Maker:
    def new_head(config: EagleConfig, weights: dict[str, Any]) -> EagleRunner:
        parts = TargetParts(loaded(odd_model("bfloat16", threads=threads)))
        return NativeEagle(config, weights, parts, draft_vocabulary(config), **options)

    return new_head


NATIVE = {
    "native": natively(),
    "one-thread": natively(1, activations=Activations.INT8),
    "float32": natively(weight_format=WeightFormat.F32, kv_type=KVType.F32),
}
RUNNERS = NATIVE | {"torch": in_torch}
every_runner = pytest.mark.parametrize("new_head", RUNNERS.values(), ids=RUNNERS)
configs = pytest.mark.parametrize("config", [EAGLE3, EAGLE1], ids=["eagle3", "eagle"])


def with_ties(config: EagleConfig) -> dict[str, Any]:
    """Every logit stands there four times, among them the greatest."""
    weights = head_weights(config)
    rows = weights["lm_head.weight"]
    quarter = -(-len(rows) // 4)
    return weights | {"lm_head.weight": rows[:quarter].repeat(4, 1)[: len(rows)].contiguous()}


def texts(config: EagleConfig) -> tuple[list[list[int]], list[np.ndarray]]:
    """Pending tokens of several sequences, and the target's features for them."""
    rng = np.random.default_rng(1)
    captured = [rng.standard_normal((n, config.feature_size), dtype=np.float32) for n in LENGTHS]
    return [some_tokens(n, seed=n) for n in LENGTHS], captured


def draft(head: EagleRunner, which: List[int], width: int = 0) -> HeadDraft:
    """Greedy drafts after some of the texts, in rows of their own."""
    pending, captured = texts(head.config)
    return head.draft(
        head.new_cache(num_rows=len(LENGTHS), capacity=256),
        which,
        [0] * len(which),
        [pending[i] for i in which],
        np.concatenate([captured[i] for i in which]),
        [COUNTS[i] for i in which],
        [BEST] * len(which),
        width=width,
    )


def check_levels(
    head: EagleRunner, text: int, levels: list[Level], width: int, atol: float = 1e-6
) -> None:
    """Raise AssertionError unless they are those of single passes' logits."""
    pending, captured = texts(head.config)
    cache = head.new_cache(num_rows=1, capacity=256)
    tokens, start, x = pending[text], 0, head.fuse(captured[text])
    assert len(levels) == COUNTS[text]
    for token_ids, chances in levels:
        segment = Segment(0, start, len(tokens))
        logits, outputs = head.forward(cache, tokens, x, [segment], [len(tokens) - 1])
        best = np.argsort(-logits[0], kind="stable")[:width]
        law = np.exp(logits[0].astype(np.float64) - logits[0].max())
        assert token_ids == head.draft_token_ids[best].tolist()
        np.testing.assert_allclose(chances, (law / law.sum())[best], rtol=0, atol=atol)
        start, tokens, x = start + len(tokens), token_ids[:1], outputs[-1:]


@pytest.mark.parametrize("new_head", NATIVE.values(), ids=NATIVE)
@pytest.mark.parametrize("weights_of", [head_weights, with_ties])
@configs
def test_levels_are_those_of_single_passes(
    config: EagleConfig, weights_of: Callable[[EagleConfig], dict[str, Any]], new_head: Maker
) -> None:
    """And the chain is the one that is drafted without them."""
    check_drafts(new_head(config, weights_of(config)), atol=1e-6)


@configs
def test_levels_in_torch(config: EagleConfig) -> None:
    """Up to rounding: its products depend on how many rows there are."""
    check_drafts(in_torch(config, head_weights(config)), atol=1e-5)


def check_drafts(head: EagleRunner, *, atol: float) -> None:
    everyone = range(len(LENGTHS))
    made = draft(head, everyone, width=3)
    assert made.token_ids == draft(head, everyone).token_ids
    assert made.q == [None] * len(LENGTHS)
    for i, levels in enumerate(made.ranked):
        check_levels(head, i, levels, 3, atol)
        assert [token_ids[0] for token_ids, _ in levels] == made.token_ids[i]


@every_runner
def test_more_than_there_are_is_all(new_head: Maker) -> None:
    head = new_head(EAGLE3, head_weights(EAGLE3))
    (levels,) = draft(head, [1], width=1000).ranked
    check_levels(head, 1, levels, EAGLE3.draft_vocab_size)
    for token_ids, chances in levels:
        assert sorted(token_ids) == head.draft_token_ids.tolist()
        assert sum(chances) == pytest.approx(1, abs=1e-5)


@every_runner
def test_nothing_is_ranked_unasked(new_head: Maker) -> None:
    assert draft(new_head(EAGLE3, head_weights(EAGLE3)), [0, 1]).ranked == []


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_company_or_threads(threads: int) -> None:
    weights = head_weights(EAGLE3)
    together = draft(natively(threads)(EAGLE3, weights), range(len(LENGTHS)), width=5)
    for i in range(len(LENGTHS)):
        alone = draft(natively(1)(EAGLE3, weights), [i], width=5)
        assert together.ranked[i] == alone.ranked[0]


def test_the_comparison_can_fail() -> None:
    """Equal tokens in another order, or a probability at another temperature."""
    head = natively()(EAGLE3, with_ties(EAGLE3))
    (levels,) = draft(head, [1], width=3).ranked
    token_ids, chances = levels[-1]
    swapped = [token_ids[0], token_ids[2], token_ids[1]]
    warmer = [chance**0.99 for chance in chances]
    for wrong in ((swapped, chances), (token_ids, warmer)):
        with pytest.raises(AssertionError):
            check_levels(head, 1, [*levels[:-1], wrong], 3)


def test_logits_that_are_not_finite() -> None:
    weights = head_weights(EAGLE3)
    weights["lm_head.weight"][7] = torch.nan
    head = natively(weight_format=WeightFormat.F32)(EAGLE3, weights)
    assert len(draft(head, [0]).token_ids[0]) == COUNTS[0]
    with pytest.raises(ModelError, match="sequence 0, draft step 0: the head's logits are not"):
        draft(head, [0], width=3)
