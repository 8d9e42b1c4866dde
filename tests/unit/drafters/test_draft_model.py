"""Drafting by a model: in one call where every token is the model's own best, in trees, and what is
said of it all is the target's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from laws import SMALL, SMALL_DRAFT, chi_square_p, pair_counts, pair_law
from native_models import loaded, odd_model, some_tokens, usable_paths
from tiny import greedy_tokens, new_runner, tiny_model

from outpace import LLM
from outpace.drafters.base import DraftingContext
from outpace.drafters.draft_model import DraftModelDrafter, DraftModelOptions
from outpace.errors import OptionError
from outpace.models.load import LoadedModel
from outpace.params import SamplingParams
from outpace.types import Draft, Sequence

native = pytest.mark.skipif(not usable_paths(), reason="the native library is not built")

GREEDY = SamplingParams(temperature=0)


def make(
    in_one_call: bool = True,
    *,
    max_len: int = 256,
    num_branches: int = 1,
    draft: LoadedModel | None = None,
) -> DraftModelDrafter:
    """A drafter with a native draft model; otherwise it drafts token by token, as in torch."""
    draft = draft or loaded(odd_model("q4_1", "int8"))
    context = DraftingContext(
        target=draft,
        max_num_seqs=4,
        max_model_len=max_len,
        rng=np.random.default_rng(0),
        runner=new_runner(draft),
        models=[draft],
    )
    drafter = DraftModelDrafter(DraftModelOptions(model=draft, num_branches=num_branches), context)
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
    return Sequence(seq_id, some_tokens(length, seed=seq_id, vocab_size=96), length, params)


def token_ids(drafts: list[Draft]) -> list[tuple[int, ...]]:
    return [draft.token_ids for draft in drafts]


@native
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


@native
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


@native
def test_nothing_is_drafted_past_its_own_context(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make(max_len=256)
    assert drafter._runner.max_len == 256
    drafts = drafter.propose([sequence(0, 253), sequence(1, 256), sequence(2, 20)], [5, 5, 5])
    assert [len(draft) for draft in drafts] == [3, 0, 5]


@native
def test_a_long_prompt_is_caught_up_with_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.drafters.draft_model.MAX_FEED", 40)
    drafter = make()
    calls = calls_of(drafter, monkeypatch)
    drafts = drafter.propose([sequence(0, 100), sequence(1, 30)], [4, 4])
    assert calls == ["extend", "extend", "draft_greedy"]
    expected = make().propose([sequence(0, 100), sequence(1, 30)], [4, 4])
    assert token_ids(drafts) == token_ids(expected)


@native
def test_it_knows_how_much_it_has_to_read() -> None:
    drafter, tokens = make(), some_tokens(40)
    first = Sequence(0, tokens[:30], 30, GREEDY)
    assert drafter.adopt(first, None, 0) == 0
    assert drafter.num_unread(first) == 29
    drafter.propose([first], [3])
    assert drafter.num_unread(first) == 0
    first.tokens.extend([*tokens[30:34]])
    assert drafter.num_unread(first) <= 4
    drafter.release(first)
    # What an ended text left in the cache is read already.
    second = Sequence(1, [*tokens[:25], *tokens[35:]], 30, GREEDY)
    drafter.adopt(second, None, 0)
    assert drafter.num_unread(second) == 4
    drafter.release(second)
    drafter.check_integrity()


def test_a_model_in_torch_drafts_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make(draft=tiny_model())
    assert not drafter._runner.can_draft
    calls = calls_of(drafter, monkeypatch)
    with torch.inference_mode():
        (draft,) = drafter.propose([sequence(0, 5)], [3])
    assert calls == ["extend"] * 3
    assert len(draft) == 3


def branches_of(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens of every branch, in the order of the first ones."""
    ends = [node for node, below in enumerate(draft.children()[1:]) if not below]
    return sorted(
        (draft.tokens_to(n) for n in ends), key=lambda path: draft.token_ids.index(path[0])
    )


@pytest.mark.parametrize(
    ("num_branches", "budget", "lengths"),
    [(3, 7, [3, 2, 2]), (3, 3, [1, 1, 1]), (3, 2, [1, 1]), (2, 5, [3, 2]), (4, 1, [1]), (4, 0, [])],
)
def test_branches_share_the_budget(num_branches: int, budget: int, lengths: list[int]) -> None:
    model = tiny_model(seed=4)
    seqs = [sequence(i, 5 + i) for i in range(3)]
    for seq, draft in zip(
        seqs, make(draft=model, num_branches=num_branches).propose(seqs, [budget] * 3), strict=True
    ):
        branches = branches_of(draft)
        assert [len(branch) for branch in branches] == lengths
        assert len({branch[0] for branch in branches}) == len(branches)
        for branch in branches:
            rest = greedy_tokens(model, [*seq.tokens, branch[0]], len(branch) - 1)
            assert list(branch[1:]) == rest
        if branches:
            assert branches[0][0] == greedy_tokens(model, seq.tokens, 1)[0]


def test_no_branch_is_longer_than_the_answer_can_be() -> None:
    seq = sequence(0, 5)
    seq.max_len = 8
    (draft,) = make(draft=tiny_model(), num_branches=2).propose([seq], [9])
    assert [len(branch) for branch in branches_of(draft)] == [2, 2]
    (draft,) = make(draft=tiny_model()).propose([seq], [9])
    assert len(draft) == 2


PATHS = [[0], [0, 2], [1], [1, 3], [], [2, 4, 6]]  # nodes of a tree of 3 branches with 7 nodes


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3, temperature=0.9)])
def test_after_a_tree_it_drafts_what_a_fresh_one_would(params: SamplingParams) -> None:
    """Whatever path was accepted, none, or one that it did not feed to the end."""
    model = tiny_model(seed=4)
    drafter = make(draft=model, num_branches=3)
    seq = sequence(0, 9, params)
    for step, nodes in enumerate(PATHS):
        (draft,) = drafter.propose([seq], [7])
        (fresh,) = make(draft=model, num_branches=3).propose([sequence_of(seq)], [7])
        assert draft == fresh
        path = [node for node in nodes if node in draft.path(nodes[-1])]
        seq.tokens += [*(draft.token_ids[node] for node in path), 5 + step]
    drafter.release(seq)
    drafter.check_integrity()


def sequence_of(seq: Sequence) -> Sequence:
    return Sequence(seq.seq_id, list(seq.tokens), seq.num_prompt, seq.params)


def test_sampled_siblings_say_what_they_were_drawn_from() -> None:
    """Each from the first one's q without those before it; the children from their own prefix's."""
    seq = sequence(0, 6, SamplingParams(temperature=0.8, top_k=20, presence_penalty=1.0))
    (draft,) = make(draft=tiny_model(seed=4), num_branches=3).propose([seq], [7])
    first, second, third = (draft.q_at(node) for node in range(3))
    rest = first.copy()
    for node, q in ((0, second), (1, third)):
        rest[draft.token_ids[node]] = 0
        np.testing.assert_allclose(q, rest / rest.sum(), rtol=1e-6)
    for node in range(3, 7):
        (one,) = make(draft=tiny_model(seed=4)).propose(
            [Sequence(0, [*seq.tokens, *draft.tokens_to(node)[:-1]], 6, seq.params)], [1]
        )
        np.testing.assert_allclose(draft.q_at(node), one.q_at(0), rtol=1e-6)


def test_a_cache_without_trees_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from outpace.runner import Runner

    monkeypatch.setattr(Runner, "takes_trees", property(lambda runner: False))
    with pytest.raises(OptionError, match=r"num_branches=2.*tiny.*takes no trees"):
        make(draft=tiny_model(), num_branches=2)
    assert make(draft=tiny_model()).options.num_branches == 1


NUM_REQUESTS = 4000
"""With 1,500 chance let the liar pass now and then."""


class Liar(DraftModelDrafter):
    """Says of every sibling that it was drawn from what the first was."""

    def propose(self, seqs: Any, budgets: Any) -> list[Draft]:
        return [_as_if_with_replacement(draft) for draft in super().propose(seqs, budgets)]


def _as_if_with_replacement(draft: Draft) -> Draft:
    if draft.q is None or draft.parents is None:
        return draft
    roots = sum(parent < 0 for parent in draft.parents)
    return Draft(draft.token_ids, (draft.q[0],) * roots + draft.q[roots:], "liar", draft.parents)


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_law_with_sampled_siblings_is_the_targets() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)
    values = []
    for method in (DraftModelDrafter, Liar):
        config = {
            "method": method,
            "model": SMALL_DRAFT,
            "num_speculative_tokens": 6,
            "num_branches": 3,
        }
        with LLM(SMALL, speculative_config=config, max_num_seqs=64) as llm:
            counts = pair_counts(llm, params, NUM_REQUESTS)
        values.append(chi_square_p(counts, pair_law(params)))
    honest, dishonest = values
    assert honest > 1e-5
    assert dishonest < 1e-7


def test_every_branch_takes_a_token() -> None:
    with pytest.raises(OptionError, match="num_branches=3 takes a draft token for each branch"):
        DraftModelOptions(model="any", num_branches=3, num_speculative_tokens=2)
