"""Drafting by the target's own first layers, through the engine and beside it."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from native_models import loaded, odd_model, some_tokens, usable_paths
from tiny import new_runner, random_weights, tiny_config, tiny_model, tiny_tokenizer

from outpace import LLM, SamplingParams
from outpace.drafters.base import DraftingContext
from outpace.drafters.early_exit import EarlyExitDrafter, EarlyExitOptions
from outpace.errors import ModelError, OptionError
from outpace.models.decoder import Decoder
from outpace.models.load import LoadedModel
from outpace.types import Sequence

PROMPTS = [[5, 6, 7, 8, 5, 6, 7], [9, 9, 9], [40], list(range(2, 60)), [11, 12, 13, 11]]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(
    temperature=0.8, seed=5, top_p=0.9, frequency_penalty=0.3, max_tokens=24, ignore_eos=True
)
CHAIN = {"num_speculative_tokens": 4}
TREE = {"num_speculative_tokens": 6, "num_branches": 3}
TARGETS = ("torch", "native")

pytestmark = pytest.mark.usefixtures("unchecked_shapes_in_module")


@cache
def target(impl: str) -> LoadedModel:
    if impl == "torch":
        return tiny_model(seed=1, num_layers=4)
    return loaded(odd_model("q4_1", "int8"))


@cache
def sure_of_itself() -> LoadedModel:
    """Four layers, the last two of which add nothing: the exit after two is the whole model."""
    config = tiny_config(num_layers=4)
    weights = random_weights(config, seed=2)
    for name, tensor in weights.items():
        if any(f"layers.{i}." in name for i in (2, 3)) and ("o_proj" in name or "down" in name):
            tensor.zero_()
    decoder = Decoder(config, weights.__getitem__, dtype=torch.float64)
    return LoadedModel(decoder, tiny_tokenizer(96), "sure", fingerprint="sure")


def context_of(model: LoadedModel, **options: Any) -> DraftingContext:
    return DraftingContext(
        target=model,
        max_num_seqs=5,
        max_model_len=256,
        rng=np.random.default_rng(0),
        runner=new_runner(model, num_rows=5, **options),
    )


def generate(model: LoadedModel, params: SamplingParams, *, batch: int = 5, **config: Any) -> Any:
    speculation = {"method": "early_exit", **config} if config else None
    with LLM(model, speculative_config=speculation, max_num_seqs=batch) as llm:
        return llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)


def ids_of(results: Any) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in results]


@pytest.fixture(scope="module")
def plain() -> Any:
    """What plain decoding answers, by what computes it and parameters."""
    return cache(lambda impl, is_greedy: generate(target(impl), GREEDY if is_greedy else SEEDED))


@pytest.mark.parametrize("impl", TARGETS)
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
def test_it_says_what_plain_decoding_says(
    impl: str, batch: int, params: SamplingParams, config: dict[str, int], plain: Any
) -> None:
    if impl == "native" and not usable_paths():
        pytest.skip("the native library is not built")
    model = target(impl)
    config = config | {"exit_layer": model.decoder.num_layers - 1}
    results = generate(model, params, batch=batch, **config)
    assert ids_of(results) == ids_of(plain(impl, params.is_greedy))
    assert sum(result.stats.num_drafter_errors for result in results) == 0
    assert sum(result.stats.num_accepted_tokens for result in results) > 0


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
@pytest.mark.parametrize("num_branches", [1, 2])
def test_where_the_later_layers_add_nothing_everything_is_accepted(
    params: SamplingParams, num_branches: int
) -> None:
    config = {"num_speculative_tokens": 4, "exit_layer": 2, "num_branches": num_branches}
    for result in generate(sure_of_itself(), params, **config):
        stats = result.stats
        # Of two branches one can be right, and the first is.
        assert stats.num_accepted_tokens * num_branches >= stats.num_draft_tokens > 10
        assert stats.acceptance_length >= (4.0 if num_branches == 1 else 2.5)


def test_drafts_begin_once_the_prompt_is_fed() -> None:
    """As in a decoding step: all but the newest token is held."""
    context = context_of(target("torch"))
    drafter = EarlyExitDrafter(EarlyExitOptions(), context)
    params = SamplingParams(temperature=0)
    seqs = [Sequence(i, list(ids), len(ids), params) for i, ids in enumerate(PROMPTS)]
    budgets = [4, 3, 2, 4, 1]
    assert [len(draft) for draft in drafter.propose(seqs, budgets)] == [0] * 5
    for seq in seqs:
        context.runner.open(seq)
    # Of a short prompt nothing need be held.
    assert [len(draft) for draft in drafter.propose(seqs, budgets)] == [4, 3, 2, 0, 1]
    before = drafter.propose(seqs[:3], [4, 3, 2])
    context.runner.extend(seqs)
    context.runner.commit(seqs)
    after = drafter.propose(seqs, budgets)
    assert [len(draft) for draft in after] == budgets
    assert [draft.token_ids for draft in after[:3]] == [draft.token_ids for draft in before]
    assert {draft.origin for draft in after} == {"early_exit"}


def test_nothing_is_drafted_past_the_capacity() -> None:
    model = target("torch")
    context = context_of(model, num_tokens=256)
    drafter = EarlyExitDrafter(EarlyExitOptions(num_branches=2, num_speculative_tokens=2), context)
    params = SamplingParams(temperature=0)
    lengths = [250, 253, 255, 256]
    seqs = [Sequence(i, some_tokens(n, i, 90), n, params) for i, n in enumerate(lengths)]
    for seq in seqs:
        context.runner.open(seq)
    context.runner.extend(seqs)
    context.runner.commit(seqs)
    assert [len(draft) for draft in drafter.propose(seqs, [4] * 4)] == [4, 3, 1, 0]


@pytest.mark.skipif(not usable_paths(), reason="the native library is not built")
def test_a_greedy_draft_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = target("native")
    context = context_of(model)
    drafter = EarlyExitDrafter(EarlyExitOptions(), context)
    seqs = [Sequence(i, [5 + i, 6], 2, SamplingParams(temperature=0)) for i in range(3)]
    for seq in seqs:
        context.runner.open(seq)
    calls = []
    for name in ("forward", "draft"):
        real = getattr(model.decoder._model, name)
        monkeypatch.setattr(
            model.decoder._model,
            name,
            lambda *args, name=name, real=real, **options: (
                calls.append(name),
                real(*args, **options),
            )[1],
        )
    chosen = drafter.propose(seqs, [4, 2, 3])
    assert calls == ["draft"]
    seqs[1].params = SamplingParams(temperature=0, logit_bias={9: 1e-3})
    again = drafter.propose(seqs, [4, 2, 3])
    assert calls[1:] == ["forward"] * 4
    assert [draft.token_ids for draft in again] == [draft.token_ids for draft in chosen]


@pytest.mark.parametrize(("num_layers", "expected"), [(2, 1), (4, 3), (6, 5), (30, 28)])
def test_the_exit_where_none_is_given(num_layers: int, expected: int) -> None:
    from outpace.drafters.early_exit import _exit_layer

    context = context_of(tiny_model(num_layers=num_layers))
    assert _exit_layer(EarlyExitOptions(), context) == expected
    last = num_layers - 1
    assert _exit_layer(EarlyExitOptions(exit_layer=last), context) == last


def test_what_cannot_be_honoured_is_refused() -> None:
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(OptionError, match="exit_layer"):
            EarlyExitOptions(exit_layer=wrong)
    with pytest.raises(OptionError, match="num_branches"):
        EarlyExitOptions(num_branches=0)
    for exit_layer in (4, 9):
        with pytest.raises(OptionError, match=rf"exit_layer={exit_layer}.* has 4 layers.* 1 to 3"):
            EarlyExitDrafter(EarlyExitOptions(exit_layer=exit_layer), context_of(target("torch")))
    with pytest.raises(ModelError, match="one only"):
        EarlyExitDrafter(EarlyExitOptions(), context_of(tiny_model(num_layers=1)))


def test_a_model_that_runs_all_its_layers_or_none() -> None:
    """As the adapter for models of `transformers` does."""
    adapted = SimpleNamespace(name="some-model", runs_on="transformers adapter")
    runner = SimpleNamespace(model=SimpleNamespace(num_layers=4))
    context: Any = SimpleNamespace(target=adapted, runner=runner)
    with pytest.raises(ModelError, match=r"some-model.* transformers adapter runs all layers"):
        EarlyExitDrafter(EarlyExitOptions(), context)
