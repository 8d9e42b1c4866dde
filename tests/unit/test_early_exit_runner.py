"""The first layers of a model over its own cache: what they say, and that nobody notices them.

The oracle is a model of its own with those layers only: same weights, own cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from native_models import loaded, odd_config, odd_model, stored, usable_paths
from tiny import fresh_logits, new_runner, new_sequence, random_weights, tiny_config, tiny_model

from outpace.models.base import EarlyExit
from outpace.models.decoder import Decoder
from outpace.models.load import DTYPES, LoadedModel
from outpace.models.native.decoder import native_decoder
from outpace.runner import Runner
from outpace.types import Draft, Sequence

TEXTS = [[5, 6, 7, 8, 9, 10, 11], [40, 41], list(range(2, 50)), [3], [60, 61, 62] * 5]
EXITS = {"torch-float64": 2, "torch-float32": 3, "native-float32": 1, "native-q4_1": 1}


class Models(NamedTuple):
    """A model, where to leave it, and a model that ends there."""

    whole: LoadedModel
    exit_layer: int
    first: LoadedModel


def in_torch(dtype: str, exit_layer: int) -> Models:
    whole = tiny_model(num_layers=4, seed=3, dtype=dtype)
    weights = random_weights(tiny_config(num_layers=4), seed=3)
    config = tiny_config(num_layers=exit_layer)
    first = Decoder(
        config, weights.__getitem__, dtype=DTYPES[dtype], num_logits=whole.decoder.num_logits
    )
    return Models(whole, exit_layer, loaded(first))


def on_the_native_step(dtype: str, exit_layer: int) -> Models:
    config, weights = stored(dtype)
    shorter = odd_config(layers=config.layers[:exit_layer], tie_word_embeddings=True)
    first = native_decoder(shorter, weights, dtype=dtype)
    return Models(loaded(odd_model(dtype)), exit_layer, loaded(first))


@pytest.fixture(params=EXITS, scope="module")
def models(request: pytest.FixtureRequest) -> Models:
    impl, dtype = request.param.split("-")
    if impl == "native" and not usable_paths():
        pytest.skip("the native library is not built")
    make = in_torch if impl == "torch" else on_the_native_step
    return make(dtype, EXITS[request.param])


def prefilled(model: LoadedModel, **options: Any) -> tuple[Runner, list[Sequence]]:
    """A runner whose rows hold all but the newest token of each text, in another order."""
    runner = new_runner(model, num_rows=len(TEXTS), **options)
    seqs = [new_sequence(tokens, seq_id=i) for i, tokens in enumerate(TEXTS)]
    for seq in seqs[::-1]:
        runner.open(seq)
    runner.extend(seqs)
    runner.commit(seqs)
    return runner, seqs


def close(found: Any, expected: torch.Tensor) -> bool:
    return bool(np.allclose(found, expected.numpy(), rtol=0, atol=2e-4))


def test_every_way_of_drafting_is_the_shorter_models(models: Models) -> None:
    runner, seqs = prefilled(models.whole)
    view = runner.early_exit(models.exit_layer)
    counts = [4, 1, 3, 2, 4]
    # Token by token, and where there is such a thing in one call.
    drafts = [Draft()] * len(seqs)
    for step in range(max(counts)):
        active = [i for i, count in enumerate(counts) if count > step]
        scores = view.extend([seqs[i] for i in active], [drafts[i] for i in active], last_only=True)
        logits = scores.on_host()
        for i, rows in zip(active, scores.rows, strict=True):
            text = [*seqs[i].tokens, *drafts[i].token_ids]
            assert close(logits[rows][0], fresh_logits(models.first, text))
            drafts[i] = Draft((*drafts[i].token_ids, int(logits[rows][0].argmax())))
    assert view.can_draft == models.whole.runs_on.startswith("native")
    if view.can_draft:
        at_once = view.draft_greedy(seqs, counts)
        assert [tuple(ids) for ids in at_once] == [draft.token_ids for draft in drafts]


def test_trees_and_several_pending_tokens(models: Models) -> None:
    runner, seqs = prefilled(models.whole)
    seqs[1].tokens += [9, 12, 13]
    view = runner.early_exit(models.exit_layer)
    assert [view.num_pending(seq) for seq in seqs] == [1, 4, 1, 1, 1]
    assert view.num_pending(new_sequence([4], seq_id=77)) is None
    tree = Draft((20, 21, 22, 23, 24), parents=(-1, -1, 0, 1, 1))
    drafts = [tree, tree, Draft((30, 31)), Draft(), tree]
    scores = view.extend(seqs, drafts)
    logits = scores.on_host()
    assert len(logits) == 6 * 3 + 3 + 1
    assert sum(fed.stop - fed.start for fed in scores.fed) == len(logits) + 3
    for seq, draft, rows in zip(seqs, drafts, scores.rows, strict=True):
        assert close(logits[rows][0], fresh_logits(models.first, seq.tokens))
        for node in range(len(draft)):
            text = [*seq.tokens, *draft.tokens_to(node)]
            assert close(logits[rows][node + 1], fresh_logits(models.first, text))


def test_the_models_own_cache_is_as_if_nothing_had_been_drafted(models: Models) -> None:
    """Ids and lengths, and the bits of every later pass: verification, and the step after it."""
    answers = []
    for drafted in (False, True):
        runner, seqs = prefilled(models.whole)
        view = runner.early_exit(models.exit_layer)
        found = []
        for step in range(3):
            held = [list(runner.cache.token_ids(row)) for row in range(len(seqs))]
            if drafted:
                tree = Draft((20, 21, 22, 23), parents=(-1, -1, 0, 1))
                view.extend(seqs, [tree] * len(seqs))
                view.extend(seqs, [Draft()] * len(seqs), last_only=True)
                view.extend(seqs, [Draft((33,))] * len(seqs), last_only=True)
                if view.can_draft:
                    view.draft_greedy(seqs, [9] * len(seqs))
            assert held == [list(runner.cache.token_ids(row)) for row in range(len(seqs))]
            drafts = [Draft((50 + step, 51, 52)[: i % 4]) for i in range(len(seqs))]
            found.append(runner.extend(seqs, drafts).on_host().tobytes())
            for seq, draft in zip(seqs, drafts, strict=True):
                seq.tokens += [*draft.token_ids[:step], 4 + step]
            runner.commit(seqs)
        answers.append(found)
    assert answers[0] == answers[1]


def test_the_check_would_see_a_slot_that_is_read(models: Models) -> None:
    """Negative control: the same drafting over slots that the rows do hold changes later passes."""
    answers = []
    for spoiled in (False, True):
        runner, seqs = prefilled(models.whole)
        if spoiled:
            row = next(r for r in range(len(seqs)) if runner.cache.length(r) == 47)
            runner.cache.rollback(row, 40)
            wrong = new_sequence([*seqs[2].tokens[:40], *[9] * 8], seq_id=2)
            runner.early_exit(models.exit_layer).extend([wrong], [Draft()])
            runner.cache.append(row, seqs[2].tokens[40:47])
        answers.append(runner.extend(seqs).on_host().tobytes())
    assert answers[0] != answers[1]


def test_a_cache_that_is_all_but_full(models: Models) -> None:
    """Capacity is 256 slots: of 250 tokens 249 are held, and six more may be drafted."""
    runner = new_runner(models.whole, num_tokens=256)
    seq = new_sequence([2 + i % 50 for i in range(250)])
    runner.open(seq)
    runner.extend([seq])
    runner.commit([seq])
    view = runner.early_exit(models.exit_layer)
    assert view.max_len - len(seq.tokens) == 6
    draft = Draft(tuple(range(20, 26)))
    logits = view.extend([seq], [draft]).on_host()
    assert close(logits[-1], fresh_logits(models.first, [*seq.tokens, *draft.token_ids]))
    if view.can_draft:
        assert len(view.draft_greedy([seq], [6])[0]) == 6


def test_only_the_first_layers_are_written() -> None:
    model = tiny_model(num_layers=4, seed=3)
    runner = new_runner(model)
    seq = new_sequence([5, 6, 7])
    runner.open(seq)
    runner.early_exit(3).extend([seq], [Draft((8,))])
    written = runner.cache.k.abs().amax(dim=(1, 3, 4))  # [layers, slots]
    assert (written > 0).sum(dim=1).tolist() == [4, 4, 4, 0]


def test_layers_a_model_does_not_have() -> None:
    runner = new_runner(tiny_model(num_layers=2))
    assert isinstance(runner.model, EarlyExit)
    assert list(runner.model.exit_layers) == [1, 2]
    for num_layers in (0, 3):
        with pytest.raises(AssertionError, match=str(num_layers)):
            runner.early_exit(num_layers)
