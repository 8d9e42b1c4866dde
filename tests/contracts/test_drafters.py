"""What every drafter must keep, run over each file found in `drafters/`, as a chain and as a tree.

A new drafter is tested by standing there. One that cannot be built from defaults gets an entry in
`CONFIGS`. Options that turn a chain into a tree are recognised by name (`AS_A_TREE`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from fake_head import FakeHead, head_config
from heads import random_medusa
from laws import SMALL, SMALL_DRAFT, SMALL_VOCAB, chi_square_p, pair_counts, pair_law
from plain import plain_llm
from scripted import sampled, scripted, siblings
from tiny import new_runner, tiny_model

from outpace import LLM, SamplingParams
from outpace.drafters import available_methods, drafter_class, make_options, options_of
from outpace.drafters.base import DraftingContext
from outpace.engine.engine import Engine
from outpace.models.load import LoadedModel
from outpace.types import Sequence

TARGET = tiny_model(seed=1)
PROMPTS = [
    [5, 6, 7, 8, 5, 6, 7, 8, 5, 6],
    [9, 9, 9, 9, 9],
    [40],
    list(range(2, 60)),
    [11, 12, 13, 11, 12, 13, 11],
]


def fake_head(method: str, vocab_size: int, draft_vocab_size: int, **options: Any) -> FakeHead:
    """A head over the target's two layers that drafts most of its tokens."""
    config = head_config(
        algorithm=method,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        feature_layers=(0, 1, 2) if method == "eagle3" else (2,),
        target_hidden_size=32,
    )
    return FakeHead(config, **options)


def written(kind: Callable[..., Path], target: LoadedModel, **options: Any) -> Path:
    """A draft that is gone with this process."""
    return kind(target, Path(DIRECTORY.name) / f"{kind.__name__}-{target.name}", **options)


DIRECTORY = TemporaryDirectory()
CONFIGS: dict[str, dict[str, Any]] = {
    "draft_model": {"model": tiny_model(seed=2, num_layers=1)},
    "eagle3": {"model": fake_head("eagle3", 96, 94, seed=3, sharpness=2.0)},
    "eagle": {"model": fake_head("eagle", 96, 94, seed=3, sharpness=2.0)},
    "auto": {"model": fake_head("eagle3", 96, 94, seed=3, sharpness=2.0)},
    "medusa": {"model": written(random_medusa, TARGET)},
}
SMALL_CONFIGS: dict[str, dict[str, Any]] = {
    "draft_model": {"model": SMALL_DRAFT},
    "eagle3": {"model": fake_head("eagle3", 8, 6, seed=3)},
    "eagle": {"model": fake_head("eagle", 8, 6, seed=3)},
    "auto": {"model": fake_head("eagle3", 8, 6, seed=3)},
    "medusa": {"model": written(random_medusa, SMALL)},
}

# What makes a drafter that can do both propose a chain, and a tree.
AS_A_CHAIN = {"shape": "chain", "num_branches": 1, "num_continuations": 1}
AS_A_TREE = {"shape": "tree", "num_branches": 3, "num_continuations": 3}
# Probes that come on top of the draft tokens a test asks for.
NUM_PROBES = {"lookahead": 4}


def variants() -> Iterator[dict[str, Any]]:
    """Every method, once for each shape of draft that it can make."""
    for method in available_methods():
        names = {field.name for field in fields(options_of(method))}
        for choices in (AS_A_CHAIN, AS_A_TREE):
            chosen = {name: value for name, value in choices.items() if name in names}
            if chosen or choices is AS_A_CHAIN:
                yield {"method": method, **chosen}


def name_of(variant: dict[str, Any]) -> str:
    shape = "tree" if any(AS_A_TREE.get(k) == v for k, v in variant.items()) else "chain"
    return f"{variant['method']}-{shape}"


methods = pytest.mark.parametrize("method", list(variants()), ids=name_of)


def config(
    method: dict[str, Any], k: int, configs: dict[str, dict[str, Any]] = CONFIGS
) -> dict[str, Any]:
    """The configuration of a variant that drafts up to `k` tokens a step."""
    name = method["method"]
    size = k + NUM_PROBES.get(name, 0)
    values = {**method, "num_speculative_tokens": size, **configs.get(name, {})}
    if "num_branches" in values:
        values["num_branches"] = min(values["num_branches"], k)
    return values


def generate(llm: LLM, params: SamplingParams, prompts: List[List[int]] = PROMPTS) -> list[Any]:
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    return [output.outputs[0] for output in outputs]


WAYS = {
    "greedy": SamplingParams(temperature=0, max_tokens=40, logprobs=2),
    "seeded": SamplingParams(temperature=0.9, seed=7, max_tokens=40, top_p=0.9),
}
# Of every two of the three choices each pair is in the half that is not slow.
CELLS = [
    pytest.param(way, batch, k, marks=[pytest.mark.slow] if number % 2 else [])
    for start, way in enumerate(WAYS)
    for middle, batch in enumerate((1, 5))
    for number, k in enumerate((1, 2, 3, 5, 8), start + middle)
]


@pytest.fixture(scope="module")
def plain() -> dict[str, list[Any]]:
    """What plain decoding answers, by way."""
    with plain_llm(TARGET) as llm:
        return {way: generate(llm, params) for way, params in WAYS.items()}


@methods
@pytest.mark.parametrize(("way", "batch", "k"), CELLS)
def test_output_equals_plain_decoding(
    method: dict[str, Any], way: str, batch: int, k: int, plain: dict[str, list[Any]]
) -> None:
    params = WAYS[way]
    with LLM(TARGET, speculative_config=config(method, k), max_num_seqs=batch) as llm:
        outputs = generate(llm, params)
    for output, wanted in zip(outputs, plain[way], strict=True):
        assert output.token_ids == wanted.token_ids
        assert output.text == wanted.text
        assert output.finish_reason == wanted.finish_reason
        if params.logprobs is not None:
            values = [
                (set(a), set(b)) for a, b in zip(output.logprobs, wanted.logprobs, strict=True)
            ]
            assert all(a == b for a, b in values)


@methods
@pytest.mark.usefixtures("checked_shapes")
def test_arrays_have_their_annotated_shapes(method: dict[str, Any]) -> None:
    """The only run of this folder that checks them: every way to decide, in a batch that queues."""
    llm = LLM(TARGET, speculative_config=config(method, 3), max_num_seqs=3)
    params = [*WAYS.values(), SamplingParams(temperature=0.8, top_k=9, frequency_penalty=0.5)]
    with llm:
        for one in params:
            assert all(output.token_ids for output in generate(llm, replace(one, max_tokens=8)))


@methods
def test_never_more_than_max_tokens(method: dict[str, Any]) -> None:
    k = 4
    with LLM(TARGET, speculative_config=config(method, k)) as llm:
        for max_tokens in range(k + 3):
            params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            outputs = generate(llm, params)
            assert [len(output.token_ids) for output in outputs] == [max_tokens] * len(PROMPTS)
            assert {output.finish_reason for output in outputs} == {"length"}


@methods
def test_counters_agree_with_output(method: dict[str, Any]) -> None:
    with LLM(TARGET, speculative_config=config(method, 5)) as llm:
        for temperature in (0.0, 0.8):
            params = SamplingParams(temperature=temperature, max_tokens=50)
            requests = [{"prompt_token_ids": ids} for ids in PROMPTS]
            for result in llm.generate(requests, params):
                stats, num_output = result.stats, len(result.outputs[0].token_ids)
                assert stats.num_output_tokens == num_output
                assert 0 <= stats.num_accepted_tokens <= stats.num_draft_tokens
                assert stats.num_steps <= num_output
                assert num_output <= stats.num_steps + stats.num_accepted_tokens
                assert sum(stats.accepted_per_position) == stats.num_accepted_tokens
                assert sum(stats.drafted_per_position) == stats.num_draft_tokens
                assert stats.num_drafter_errors == 0


@methods
def test_sequences_are_not_changed_and_nothing_is_kept(method: dict[str, Any]) -> None:
    def as_given(name: Any) -> LoadedModel:
        return name

    values = config(method, 4)
    drafter_type = drafter_class(values.pop("method"))
    options = make_options(drafter_type, values)
    models = drafter_type.models(options, as_given)
    context = DraftingContext(
        target=TARGET,
        max_num_seqs=5,
        max_model_len=128,
        rng=np.random.default_rng(0),
        runner=new_runner(TARGET, num_rows=5),
        models=models,
    )
    drafter = drafter_type(options, context)
    params = SamplingParams(temperature=0.7)
    seqs = [Sequence(i, list(ids), len(ids), params) for i, ids in enumerate(PROMPTS)]
    for seq in seqs:
        # As between two steps of decoding: all but the newest token is cached.
        context.runner.open(seq)
        if len(seq.tokens) > 1:
            context.runner.extend([seq], max_feed=[len(seq.tokens) - 1])
    budgets = [4, 0, 3, 1, 2]
    for _ in range(3):
        drafts = drafter.propose(seqs, budgets)
        for seq, ids, draft, budget in zip(seqs, PROMPTS, drafts, budgets, strict=True):
            assert seq.tokens == ids
            assert len(draft) <= budget
            assert all(0 <= token < TARGET.tokenizer.vocab_size for token in draft.token_ids)
            for i, token in enumerate(draft.token_ids):
                q = draft.q_at(i)
                if q is not None:
                    assert q[token] > 0
                    assert q.sum() == pytest.approx(1, abs=1e-5)
        for seq in seqs:
            assert context.runner.num_cached(seq) == len(seq.tokens) - 1
    for seq in seqs:
        drafter.release(seq)
        drafter.release(seq)
    drafter.check_integrity()


SAMPLING = {
    "T1": SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True),
    "T0.7-top_k": SamplingParams(temperature=0.7, top_k=5, max_tokens=3, ignore_eos=True),
    "T1.3-top_p-min_p": SamplingParams(
        temperature=1.3, top_p=0.8, min_p=0.02, max_tokens=3, ignore_eos=True
    ),
}
NUM_REQUESTS = 1500


# Two of three for each variant are in the part that is not slow.
LAW_CELLS = [
    pytest.param(
        method,
        params,
        id=f"{name_of(method)}-{name}",
        marks=[pytest.mark.slow] if (row + column) % 3 == 2 else [],
    )
    for row, method in enumerate(variants())
    for column, (name, params) in enumerate(SAMPLING.items())
]


@pytest.mark.parametrize(("method", "params"), LAW_CELLS)
def test_sampled_law_is_the_targets(method: dict[str, Any], params: SamplingParams) -> None:
    with LLM(SMALL, speculative_config=config(method, 2, SMALL_CONFIGS), max_num_seqs=64) as llm:
        counts = pair_counts(llm, params, NUM_REQUESTS)
    assert chi_square_p(counts, pair_law(params)) > 1e-5


@pytest.mark.parametrize("draws", [sampled, siblings], ids=["chain", "tree"])
def test_the_law_test_has_teeth(draws: Any) -> None:
    """The same test passes a drafter that states its q truly and fails one that does not."""
    q = np.array([0.3, 0.05, 0.05, 0.1, 0.1, 0.2, 0.1, 0.1])
    claim = np.full(SMALL_VOCAB, 1 / SMALL_VOCAB)
    values = []
    for claimed in (None, claim):
        drafter = scripted(draws(q, claim=claimed))
        with LLM(SMALL, speculative_config={"method": drafter}, max_num_seqs=64) as llm:
            counts = pair_counts(llm, SAMPLING["T1"], NUM_REQUESTS)
        values.append(chi_square_p(counts, pair_law(SAMPLING["T1"])))
    honest, dishonest = values
    assert honest > 1e-5
    assert dishonest < 1e-9


def test_engine_is_the_only_loop() -> None:
    """Plain decoding is the empty drafter: the same step, no second loop."""
    assert "none" in available_methods()
    assert sum(name.startswith("step") for name in vars(Engine)) == 1
