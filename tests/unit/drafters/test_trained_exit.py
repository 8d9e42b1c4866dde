"""Drafting by the target's first layers and a trained exit, through the engine and beside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heads import random_exit, some_vocabulary
from laws import SMALL, SMALL_VOCAB, chi_square_p, pair_counts, pair_law
from native_models import loaded, odd_model, usable_paths
from tiny import new_runner, random_weights, tiny_config, tiny_model, tiny_tokenizer

from outpace import LLM, SamplingParams
from outpace.drafters.base import DraftingContext
from outpace.drafters.early_exit import EarlyExitDrafter, EarlyExitOptions
from outpace.errors import ModelError, OptionError
from outpace.heads.exit import ExitConfig, ExitModule, write_exit
from outpace.heads.exit_runner import ExitHead
from outpace.heads.target_parts import TargetParts
from outpace.models.decoder import Decoder
from outpace.models.load import LoadedModel
from outpace.types import Sequence
from outpace.verification import judge

PROMPTS = [[5, 6, 7, 8, 5, 6, 7], [9, 9, 9], [40], list(range(2, 60)), [11, 12, 13, 11]]
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SEEDED = SamplingParams(
    temperature=0.8, seed=5, top_p=0.9, frequency_penalty=0.3, max_tokens=20, ignore_eos=True
)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=20, ignore_eos=True)
CHAIN = {"num_speculative_tokens": 4}
TREE = {"num_speculative_tokens": 6, "num_branches": 3}
TARGETS = ("torch", "native")

pytestmark = pytest.mark.usefixtures("unchecked_shapes_in_module")


@cache
def target(impl: str) -> LoadedModel:
    return tiny_model(seed=1, num_layers=4) if impl == "torch" else loaded(odd_model("q4_1"))


@cache
def plain(impl: str, is_greedy: bool) -> list[list[int]]:
    return ids_of(generate(target(impl), GREEDY if is_greedy else SEEDED))


def sure_of_itself() -> LoadedModel:
    """Three layers, the last of which adds nothing: the exit after two can be the whole model."""
    config = tiny_config(num_layers=3)
    weights = random_weights(config, seed=2)
    for name, tensor in weights.items():
        if "layers.2." in name and ("o_proj" in name or "down" in name):
            tensor.zero_()
    decoder = Decoder(config, weights.__getitem__, dtype=torch.float64)
    return LoadedModel(decoder, tiny_tokenizer(96), "sure", fingerprint="sure")


def untouched_exit(model: LoadedModel, directory: Path, size: int | None = None) -> Path:
    """The exit after two layers as training starts: with the target's own norm, and A = 0."""
    parts = TargetParts(model)
    token_ids = some_vocabulary(parts.vocab_size, size)
    config = ExitConfig(
        exit_layer=2,
        hidden_size=parts.hidden_size,
        vocab_size=parts.vocab_size,
        draft_vocab_size=len(token_ids),
        rms_norm_eps=parts.norm_eps,
    )
    module = ExitModule(config, torch.from_numpy(np.array(parts.final_norm, np.float32)))
    directory.mkdir()
    write_exit(directory, module, token_ids, parts)
    return directory


def generate(on: LoadedModel, params: SamplingParams, *, batch: int = 5, **config: Any) -> Any:
    speculation = {"method": "early_exit", **config} if config else None
    with LLM(on, speculative_config=speculation, max_num_seqs=batch) as llm:
        return llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)


def ids_of(results: Any) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in results]


def context_of(model: LoadedModel) -> DraftingContext:
    return DraftingContext(
        target=model,
        max_num_seqs=5,
        max_model_len=256,
        rng=np.random.default_rng(0),
        runner=new_runner(model, num_rows=5),
    )


@pytest.mark.parametrize("impl", TARGETS)
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_it_says_what_plain_decoding_says(
    impl: str, batch: int, params: SamplingParams, shape: dict[str, int], tmp_path: Path
) -> None:
    if impl == "native" and not usable_paths():
        pytest.skip("the native library is not built")
    model = target(impl)
    directory = random_exit(
        model, tmp_path / "exit", exit_layer=model.decoder.num_layers - 1, draft_vocab_size=60
    )
    results = generate(model, params, batch=batch, model=str(directory), **shape)
    assert ids_of(results) == plain(impl, params.is_greedy)
    assert sum(result.stats.num_drafter_errors for result in results) == 0
    assert sum(result.stats.num_draft_tokens for result in results) > 100


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_an_exit_that_is_right_is_accepted(
    params: SamplingParams, shape: dict[str, int], tmp_path: Path
) -> None:
    model = sure_of_itself()
    directory = untouched_exit(model, tmp_path / "exit")
    for result in generate(model, params, model=str(directory), **shape):
        assert result.stats.num_draft_tokens > 10
        assert result.stats.acceptance_length >= (4.0 if shape is CHAIN else 2.0)


def test_an_untouched_exit_drafts_what_the_untrained_one_does(tmp_path: Path) -> None:
    """Chains of several sequences, fed from where each row ends, one shorter than another."""
    model = sure_of_itself()
    directory = untouched_exit(model, tmp_path / "exit")
    drafts = []
    for options in ({"model": directory}, {"exit_layer": 2}):
        context = context_of(model)
        drafter = EarlyExitDrafter(EarlyExitOptions(**options), context)
        seqs = [Sequence(i, [5 + i, 6, 7][: i + 1], i + 1, GREEDY) for i in range(3)]
        for seq in reversed(seqs):
            context.runner.open(seq)
        drafts.append(drafter.propose(seqs, [4, 1, 3]))
    assert drafts[0] == drafts[1]
    assert [len(draft) for draft in drafts[0]] == [4, 1, 3]


LAW = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)


def p_value(directory: Path, num_requests: int) -> float:
    config = {"method": "early_exit", "model": str(directory), "num_speculative_tokens": 2}
    with LLM(SMALL, speculative_config=config, max_num_seqs=64) as llm:
        return chi_square_p(pair_counts(llm, LAW, num_requests), pair_law(LAW))


@pytest.mark.parametrize("size", [None, 5])
def test_sampled_law_is_the_targets(size: int | None, tmp_path: Path) -> None:
    assert p_value(random_exit(SMALL, tmp_path / "exit", draft_vocab_size=size), 1000) > 1e-5


def test_the_law_test_has_teeth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, with a claim that they came from elsewhere, are found out."""
    honest = judge.draw_siblings

    def dishonest(*args: Any) -> Any:
        uniform = np.full(SMALL_VOCAB, 1 / SMALL_VOCAB, np.float32)
        return [(token, uniform) for token, _ in honest(*args)]

    monkeypatch.setattr(judge, "draw_siblings", dishonest)
    assert p_value(random_exit(SMALL, tmp_path / "exit"), 1000) < 1e-9


@pytest.mark.skipif(not usable_paths(), reason="the native library is not built")
def test_passes_of_the_native_step_compute_no_logits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = target("native")
    directory = random_exit(model, tmp_path / "exit", draft_vocab_size=60)
    context = context_of(model)
    drafter = EarlyExitDrafter(EarlyExitOptions(model=str(directory)), context)
    seqs = [Sequence(i, [5 + i, 6], 2, GREEDY) for i in range(3)]
    for seq in seqs:
        context.runner.open(seq)
    calls = []
    real = model.decoder.forward

    def forward(batch: Any, *args: Any) -> Any:
        calls.append((len(batch.token_ids), len(batch.logit_rows), args[1:]))
        return real(batch, *args)

    monkeypatch.setattr(model.decoder, "forward", forward)
    drafts = drafter.propose(seqs, [3, 1, 2])
    assert [len(draft) for draft in drafts] == [3, 1, 2]
    assert calls == [(6, 0, ((1,), 1)), (2, 0, ((1,), 1)), (1, 0, ((1,), 1))]


def test_the_layer_is_the_files(tmp_path: Path) -> None:
    model = target("torch")
    directory = random_exit(model, tmp_path / "exit", exit_layer=2)
    context = context_of(model)
    for exit_layer in (None, 2):
        options = EarlyExitOptions(model=str(directory), exit_layer=exit_layer)
        assert EarlyExitDrafter(options, context)._runner._num_layers == 2
    with pytest.raises(OptionError, match=r"exit_layer=3, but .*exit was trained for layer 2"):
        EarlyExitDrafter(EarlyExitOptions(model=str(directory), exit_layer=3), context)
    with pytest.raises(ModelError, match="no draft"):
        EarlyExitDrafter(EarlyExitOptions(model=str(tmp_path)), context)
    with pytest.raises(ModelError, match="one only"):
        EarlyExitDrafter(
            EarlyExitOptions(model=str(directory)), context_of(tiny_model(num_layers=1))
        )


def test_a_head_is_what_the_runner_takes(tmp_path: Path) -> None:
    from outpace.early_exit import TrainedExit
    from outpace.heads.exit_runner import open_exit

    head = open_exit(random_exit(target("torch"), tmp_path / "exit"), target("torch"))
    assert isinstance(head, ExitHead)
    assert isinstance(head, TrainedExit)
