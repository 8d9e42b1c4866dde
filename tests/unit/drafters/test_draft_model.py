"""Drafting by a model on the native step: in one call where every token is the model's own best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from native_models import loaded, odd_model, some_tokens, usable_paths
from tiny import tiny_model

from outpace.drafters.base import DraftingContext
from outpace.drafters.draft_model import DraftModelDrafter, DraftModelOptions
from outpace.params import SamplingParams
from outpace.types import Draft, Sequence

pytestmark = pytest.mark.skipif(not usable_paths(), reason="the native library is not built")

GREEDY = SamplingParams(temperature=0)


def make(in_one_call: bool = True, *, max_len: int = 256) -> DraftModelDrafter:
    """A drafter with a native draft model; otherwise it drafts token by token, as in torch."""
    draft = loaded(odd_model("q4_1", "int8"))
    context = DraftingContext(
        target=draft,
        max_num_seqs=4,
        max_model_len=max_len,
        rng=np.random.default_rng(0),
        models=[draft],
    )
    drafter = DraftModelDrafter(DraftModelOptions(model=draft), context)
    if not in_one_call:
        drafter._runner._drafting = None
    return drafter


def calls_of(drafter: DraftModelDrafter, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way the runner was asked, from now on."""
    calls: list[str] = []
    for name in ("extend", "draft_greedy"):
        real = getattr(drafter._runner, name)

        def asked(*args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            calls.append(name)
            return real(*args, **options)

        monkeypatch.setattr(drafter._runner, name, asked)
    return calls


def sequence(seq_id: int, length: int, params: SamplingParams = GREEDY) -> Sequence:
    return Sequence(seq_id, some_tokens(length, seed=seq_id), length, params)


def token_ids(drafts: list[Draft]) -> list[tuple[int, ...]]:
    return [draft.token_ids for draft in drafts]


def test_the_drafts_are_those_of_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    drafters = [make(True), make(False)]
    calls = calls_of(drafters[0], monkeypatch)
    batches = [[sequence(i, length) for i, length in enumerate((5, 60, 1, 17))] for _ in drafters]
    rng = np.random.default_rng(1)
    for budgets in ([4, 2, 0, 6], [1, 5, 3, 0], [3, 3, 3, 3], [0, 0, 0, 0], [2, 0, 8, 1]):
        drafts = [d.propose(seqs, budgets) for d, seqs in zip(drafters, batches, strict=True)]
        assert token_ids(drafts[0]) == token_ids(drafts[1])
        assert [len(draft) for draft in drafts[0]] == budgets
        assert all(draft.is_deterministic for draft in (*drafts[0], *drafts[1]))
        # Some of each draft is accepted, and then something else stands there.
        for i, draft in enumerate(drafts[0]):
            accepted = draft.token_ids[: int(rng.integers(0, len(draft) + 1))]
            for seqs in batches:
                seqs[i].tokens += [*accepted, 7 + i]
    assert set(calls) == {"draft_greedy"}
    caches = [[list(d._runner.cache.token_ids(row)) for row in range(4)] for d in drafters]
    assert caches[0] == caches[1]
    for drafter, seqs in zip(drafters, batches, strict=True):
        for seq in seqs:
            drafter.release(seq)
        drafter.check_integrity()


@pytest.mark.parametrize(
    "other",
    [
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0.8, seed=3),
        SamplingParams(temperature=0, repetition_penalty=1.5),
        SamplingParams(temperature=0, logit_bias={9: 4.0}),
        SamplingParams(temperature=0, min_tokens=9),
        SamplingParams(temperature=0, allowed_token_ids=[4, 5]),
        SamplingParams(temperature=0, logits_processors=[lambda prompt, output, logits: -logits]),
    ],
)
def test_one_that_asks_for_more_than_the_best_token_is_drafted_token_by_token(
    other: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = make()
    calls = calls_of(drafter, monkeypatch)
    seqs = [sequence(0, 9), sequence(1, 9, other)]
    drafts = drafter.propose(seqs, [3, 3])
    assert set(calls) == {"extend"}
    assert drafts[0].token_ids == make().propose([sequence(0, 9)], [3])[0].token_ids
    assert len(drafts[1]) == 3


def test_nothing_is_drafted_past_its_own_context(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make(max_len=256)
    assert drafter._runner.max_len == 256
    drafts = drafter.propose([sequence(0, 253), sequence(1, 256), sequence(2, 20)], [5, 5, 5])
    assert [len(draft) for draft in drafts] == [3, 0, 5]


def test_a_long_prompt_is_caught_up_with_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.drafters.draft_model.MAX_FEED", 40)
    drafter = make()
    calls = calls_of(drafter, monkeypatch)
    drafts = drafter.propose([sequence(0, 100), sequence(1, 30)], [4, 4])
    assert calls == ["extend", "extend", "draft_greedy"]
    expected = make().propose([sequence(0, 100), sequence(1, 30)], [4, 4])
    assert token_ids(drafts) == token_ids(expected)


def test_a_model_in_torch_drafts_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    context = DraftingContext(
        target=model,
        max_num_seqs=1,
        max_model_len=64,
        rng=np.random.default_rng(0),
        models=[model],
    )
    drafter = DraftModelDrafter(DraftModelOptions(model=model), context)
    assert not drafter._runner.can_draft
    calls = calls_of(drafter, monkeypatch)
    with torch.inference_mode():
        (draft,) = drafter.propose([sequence(0, 5)], [3])
    assert calls == ["extend"] * 3
    assert len(draft) == 3
