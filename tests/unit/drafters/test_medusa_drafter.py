"""Drafting by Medusa heads, through the engine and beside it."""

from __future__ import annotations

from collections.abc import Sequence as List
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heads import counting_heads, counting_model, random_medusa
from laws import SMALL, SMALL_VOCAB, chi_square_p, pair_counts, pair_law
from native_models import loaded, odd_model, usable_paths
from tiny import new_runner, tiny_model

from outpace import LLM, SamplingParams
from outpace.drafters.base import DraftingContext
from outpace.drafters.medusa import MedusaDrafter, MedusaOptions
from outpace.drafters.parts.reduced_draws import ReducedDraws
from outpace.errors import ModelError, OptionError
from outpace.heads.medusa_runner import MedusaRunner, open_medusa
from outpace.models.load import LoadedModel
from outpace.types import Draft, Scores, Sequence, Verdict
from outpace.verification.coupled import choose

PROMPTS = [[5, 6, 7, 8, 5, 6, 7], [9, 9, 9], [40], list(range(2, 60)), [11, 12, 13, 11]]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, seed=5, top_p=0.9, max_tokens=24, ignore_eos=True)
PENALISED = SamplingParams(temperature=0, frequency_penalty=0.7, max_tokens=24, ignore_eos=True)
UNSEEDED = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True)
WAYS = {"greedy": GREEDY, "seeded": SEEDED, "penalised": PENALISED}
CHAIN: dict[str, Any] = {"num_speculative_tokens": 3}
TREE: dict[str, Any] = {"num_speculative_tokens": 6, "shape": "tree", "tree_top_k": 3}
TARGETS = ("torch", "native")

pytestmark = pytest.mark.usefixtures("unchecked_shapes_in_module")


@cache
def target(impl: str) -> LoadedModel:
    return tiny_model(seed=1) if impl == "torch" else loaded(odd_model("q4_1", "int8"))


@cache
def plain(impl: str, way: str) -> list[list[int]]:
    return ids_of(generate(target(impl), WAYS[way]))


def generate(
    on: LoadedModel,
    params: SamplingParams,
    *,
    prompts: List[List[int]] = PROMPTS,
    batch: int = 5,
    **config: Any,
) -> Any:
    speculation = {"method": "medusa", **config} if config else None
    with LLM(on, speculative_config=speculation, max_num_seqs=batch) as llm:
        return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)


def ids_of(results: Any) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in results]


@pytest.mark.parametrize("impl", TARGETS)
@pytest.mark.parametrize(
    ("batch", "way"), [(1, "greedy"), (5, "greedy"), (5, "seeded"), (1, "penalised")]
)
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_it_says_what_plain_decoding_says(
    impl: str, batch: int, way: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    if impl == "native" and not usable_paths():
        pytest.skip("the native library is not built")
    model = target(impl)
    heads = random_medusa(model, tmp_path / "heads", draft_vocab_size=60)
    results = generate(model, WAYS[way], batch=batch, model=str(heads), **shape)
    assert ids_of(results) == plain(impl, way)
    for result in results:
        assert result.stats.num_drafter_errors == 0
        assert result.stats.num_draft_tokens > 20


@pytest.mark.parametrize("params", [GREEDY, SEEDED, UNSEEDED], ids=["greedy", "seeded", "sampled"])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_heads_that_are_right_are_accepted(
    params: SamplingParams, shape: dict[str, Any], tmp_path: Path
) -> None:
    """Each head must read the feature of the right token: one step off, and none would be right.
    Prompts in chunks and prefixes that are cached must leave that so.

    Of the 144 tokens some may be sampled against all odds, and be rejected drafts: with this target
    that has a probability of 144 x 5.7e-14, below 1e-11."""
    model, heads = counting_model(sharpness=6.0), counting_heads(tmp_path / "heads")
    # Together more than what is fed in one step.
    prompts = [[3, 4, 5], [30], *([list(range(2, 30)) * 8] * 3)]
    speculation = {"method": "medusa", "model": str(heads), **shape}
    with LLM(model, speculative_config=speculation, max_num_seqs=5) as llm:
        results = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
        again = llm.generate([{"prompt_token_ids": [3, 4, 5, 6, 7]}], params)
    for result in [*results, *again]:
        assert result.stats.acceptance_length > 3.3


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_no_path_is_longer_than_there_are_heads(num_heads: int, tmp_path: Path) -> None:
    heads = counting_heads(tmp_path / "heads", num_heads)
    (result,) = generate(
        counting_model(), GREEDY, prompts=[[5]], model=str(heads), num_speculative_tokens=6
    )
    assert len(result.stats.drafted_per_position) == num_heads
    assert result.stats.num_accepted_tokens == result.stats.num_draft_tokens


LAWS = {
    "T1": SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True),
    "T1.3-top_p": SamplingParams(temperature=1.3, top_p=0.8, max_tokens=3, ignore_eos=True),
    "T0.7-penalty": SamplingParams(
        temperature=0.7, presence_penalty=0.5, max_tokens=3, ignore_eos=True
    ),
}


def counts_of(params: SamplingParams, heads: Any, shape: dict[str, Any], count: int) -> np.ndarray:
    config = {"method": "medusa", "model": heads, "num_speculative_tokens": 2, **shape}
    with LLM(SMALL, speculative_config=config, max_num_seqs=64) as llm:
        return pair_counts(llm, params, count)


@pytest.mark.parametrize(
    ("way", "draft_vocab_size"), [("T1", None), ("T1.3-top_p", 5), ("T0.7-penalty", 5)]
)
def test_sampled_law_is_the_targets(way: str, draft_vocab_size: int | None, tmp_path: Path) -> None:
    params = LAWS[way]
    heads = random_medusa(SMALL, tmp_path / "heads", draft_vocab_size=draft_vocab_size)
    counts = counts_of(params, heads, {"shape": "chain"}, 1000)
    assert chi_square_p(counts, pair_law(params)) > 1e-5


def test_sampled_law_of_trees(tmp_path: Path) -> None:
    heads = random_medusa(SMALL, tmp_path / "heads")
    shape = {"shape": "tree", "num_speculative_tokens": 5}
    counts = counts_of(LAWS["T1"], heads, shape, 1000)
    assert chi_square_p(counts, pair_law(LAWS["T1"])) > 1e-5


def test_the_law_test_has_teeth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, with a claim that they came from elsewhere, are found out."""
    honest = ReducedDraws.chain

    def dishonest(self: ReducedDraws, logits: Any, seq: Sequence) -> Any:
        token_ids, _ = honest(self, logits, seq)
        return token_ids, (np.full(SMALL_VOCAB, 1 / SMALL_VOCAB, np.float32),) * len(token_ids)

    heads = random_medusa(SMALL, tmp_path / "heads")
    monkeypatch.setattr(ReducedDraws, "chain", dishonest)
    counts = counts_of(LAWS["T1"], heads, {"shape": "chain"}, 1000)
    assert chi_square_p(counts, pair_law(LAWS["T1"])) < 1e-9


def draws(token_ids: List[int], seed: int = 0) -> ReducedDraws:
    return ReducedDraws(np.array(token_ids), 12, np.random.default_rng(seed))


def sequence(**params: Any) -> Sequence:
    return Sequence(0, [3, 4], 2, SamplingParams(**params))


def test_a_claim_is_what_its_token_was_drawn_from() -> None:
    ids = [1, 4, 7, 8, 11]
    logits = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    seq = sequence(temperature=0.7, top_k=3)
    counts = np.zeros((3, 12))
    drawing = draws(ids)
    for _ in range(3000):
        tokens, q = drawing.chain(logits, seq)
        assert q is not None
        counts[range(3), tokens] += 1
    for position, row in enumerate(q):
        assert row.shape == (12,)
        assert row.sum() == pytest.approx(1, abs=1e-5)
        assert np.count_nonzero(row) == 3
        assert not np.delete(row, ids).any()
        assert chi_square_p(counts[position], row.astype(float)) > 1e-5


def test_chosen_tokens_make_no_claim() -> None:
    ids = [1, 4, 7, 8, 11]
    logits = np.array([[0, 1, 1, -1, 0], [2, 0, 0, 0, 9]], np.float32)
    assert draws(ids).chain(logits, sequence(temperature=0)) == ((4, 11), None)
    biased = sequence(temperature=0, logit_bias={1: 3.0, 11: -50.0})
    assert draws(ids).chain(logits, biased) == ((1, 1), None)
    seeded = sequence(temperature=1.0, seed=4)
    first = draws(ids).chain(logits, seeded)
    assert first[1] is None
    assert draws(ids, seed=9).chain(logits, seeded) == first
    none_left = sequence(temperature=1.0, allowed_token_ids=[2])
    assert draws(ids).chain(logits, none_left) == ((), None)


def test_a_seeded_draft_is_mostly_what_an_equal_target_would_choose() -> None:
    """The race is the target's, run by the 32 likeliest tokens alone."""
    logits = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    drawing = ReducedDraws(np.arange(64), 64, np.random.default_rng(0))
    weights = np.exp(logits[0])
    agreed = [
        drawing.chain(logits, sequence(temperature=1.0, seed=seed))[0][0]
        == choose(weights, seed, 0, 0)
        for seed in range(200)
    ]
    assert np.mean(agreed) > 0.8


class _Heads:
    """Heads whose logits are written down."""

    feature_layer = 2

    def __init__(self, logits: np.ndarray, token_ids: List[int]) -> None:
        self.draft_token_ids = np.array(token_ids)
        self.config = type("Config", (), {"num_heads": len(logits)})()
        self._logits = logits

    def logits(self, features: np.ndarray, num_heads: int) -> np.ndarray:
        return np.repeat(self._logits[:num_heads, None], len(features), axis=1)


def drafter_with(heads: Any, **options: Any) -> MedusaDrafter:
    model = tiny_model(seed=1)
    context = DraftingContext(
        target=model,
        max_num_seqs=5,
        max_model_len=128,
        rng=np.random.default_rng(0),
        runner=new_runner(model, num_rows=5),
    )
    return MedusaDrafter(MedusaOptions(model=heads, **options), context)


def pass_over(
    drafter: MedusaDrafter, seq: Sequence, start: int, num_fed: int, num_draft: int, verdict: Any
) -> np.ndarray:
    """`observe` as after a pass; returns the features, which tell their place in it."""
    features = np.arange(num_fed * 32, dtype=np.float32).reshape(num_fed, 32)
    rows = slice(0, 0 if num_draft is None else num_draft + 1)
    hidden = {2: torch.from_numpy(features)}
    scores = Scores(np.zeros((0, 96)), [rows], [slice(0, num_fed)], hidden, starts=[start])
    drafter.observe([seq], scores, [verdict])
    return features


def test_the_feature_of_the_last_committed_and_fed_token_is_kept() -> None:
    heads = _Heads(np.zeros((3, 96), np.float32), range(96))
    drafter = drafter_with(heads, num_speculative_tokens=3)
    seq = Sequence(7, list(range(10)), 10, SamplingParams(temperature=0))

    def known() -> tuple[int, int]:
        newest = drafter._newest[7]
        return newest.position, int(newest.feature[0]) // 32

    def size() -> int:
        return len(drafter.propose([seq], [3])[0])

    assert size() == 0
    pass_over(drafter, seq, 0, 6, None, Verdict())  # a chunk of the prompt: nothing decided yet
    assert known() == (5, 5)
    assert size() == 0
    seq.tokens.append(50)
    pass_over(drafter, seq, 6, 4, 0, Verdict((50,)))
    assert known() == (9, 3)
    assert size() == 3
    seq.tokens += [51, 52, 53]  # two of three draft tokens accepted
    pass_over(drafter, seq, 10, 4, 3, Verdict((51, 52, 53), 2))
    assert known() == (12, 2)
    assert size() == 3
    seq.tokens += [54, 55, 56]  # nodes 1 and 4 of a tree
    pass_over(drafter, seq, 13, 7, 6, Verdict((54, 55, 56), 2, nodes=(1, 4)))
    assert known() == (15, 5)
    assert size() == 3
    seq.tokens += [57]  # drafts of somebody else, all rejected
    pass_over(drafter, seq, 16, 3, 2, Verdict((57,), 0))
    assert known() == (16, 0)
    seq.tokens += [58]  # a token that came from elsewhere
    assert size() == 0
    drafter.release(seq)
    drafter.release(seq)
    drafter.check_integrity()


def test_the_check_of_what_is_kept_can_fail() -> None:
    drafter = drafter_with(_Heads(np.zeros((1, 96), np.float32), range(96)))
    seq = Sequence(7, list(range(4)), 4, SamplingParams())
    pass_over(drafter, seq, 0, 4, 0, Verdict())
    with pytest.raises(AssertionError, match=r"\[7\]"):
        drafter.check_integrity()


def test_a_tree_holds_the_likeliest_paths() -> None:
    ids = [2, 5, 9, 40]
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.1, 0.7, 0.1]], np.float32))
    options: dict[str, Any] = {"shape": "tree", "num_speculative_tokens": 5, "tree_top_k": 2}
    drafter = drafter_with(_Heads(logits, ids), **options)
    seq = Sequence(0, [1, 2, 3], 2, SamplingParams(temperature=0.7))
    pass_over(drafter, seq, 0, 2, 0, Verdict((3,)))
    (draft,) = drafter.propose([seq], [5])
    # 0.5, 0.35, 0.3, 0.21, then 0.05 for the smallest id of three equals.
    assert draft == Draft((2, 9, 5, 9, 2), None, "medusa", (-1, 0, -1, 2, 0))
    (draft,) = drafter.propose([seq], [2])
    assert draft == Draft((2, 9), None, "medusa", (-1, 0))
    (draft,) = drafter_for_depth_one(drafter, seq)
    assert draft.parents == (-1, -1)


def drafter_for_depth_one(drafter: MedusaDrafter, seq: Sequence) -> list[Draft]:
    """Of a sequence with room for one draft token."""
    seq.max_len = len(seq.tokens) + 2
    return drafter.propose([seq], [5])


def test_options_and_targets_that_are_refused(tmp_path: Path) -> None:
    for wrong in ({"shape": "bush"}, {"tree_top_k": 0}, {"num_speculative_tokens": -1}):
        with pytest.raises(OptionError):
            MedusaOptions(**wrong)
    with pytest.raises(ModelError, match="outpace train medusa"):
        drafter_with(None)
    with pytest.raises(ModelError, match="no draft"):
        drafter_with(str(tmp_path))


def test_heads_that_are_open_already(tmp_path: Path) -> None:
    model = tiny_model(seed=1)
    heads = open_medusa(random_medusa(model, tmp_path / "heads"), model)
    assert isinstance(heads, MedusaRunner)
    results = generate(model, GREEDY, model=heads, **CHAIN)
    assert ids_of(results) == plain("torch", "greedy")
