"""Captured features are those of one pass over each text, however they came about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import KillAfter, contents, killed, without_syncs
from native_models import loaded, odd_model
from tiny import feed, new_runner, tiny_model

from outpace.errors import OptionError
from outpace.models.load import LoadedModel
from outpace.runner import Runner
from outpace.training import capture
from outpace.training.answers import Answer
from outpace.training.capture import capture_features, held_out_share
from outpace.training.store import FeatureStore, Header
from outpace.types import Scores, Sequence

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

MODEL = tiny_model(num_layers=3, max_len=128)
LAYERS = (0, 2, 3)


def answers(count: int = 12, vocab_size: int = 96) -> list[Answer]:
    generator = torch.Generator().manual_seed(3)
    texts = []
    for index in range(count):
        num_prompt, num_answer = torch.randint(
            1, 10 if index % 4 else 30, (2,), generator=generator
        ).tolist()
        ids = torch.randint(0, vocab_size, (num_prompt + num_answer,), generator=generator).tolist()
        prompt_ids, answer_ids = tuple(ids[:num_prompt]), tuple(ids[num_prompt:])
        texts.append(Answer(f"source-{index % 3}", prompt_ids, answer_ids, 0.7))
    return texts


def run(
    directory: Path,
    texts: list[Answer],
    *,
    model: LoadedModel = MODEL,
    max_tokens: int = 50,
    share: float = 0.3,
    progress: Any = lambda done, total: None,
) -> FeatureStore:
    hidden_size = model.config.hidden_size
    header = Header(LAYERS, hidden_size, model.config.vocab_size, model.fingerprint)
    store = FeatureStore.open_to_write(directory, header)
    runner = new_runner(model, num_rows=3, num_tokens=max_tokens)
    capture_features(
        texts, runner, store, held_out_share=share, max_tokens=max_tokens, progress=progress
    )
    runner.check_integrity()
    return store


@pytest.fixture
def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some texts share a pass, and others take several."""
    lengths = [len(a.prompt_token_ids) + len(a.answer_token_ids) for a in answers()]
    assert max(lengths) > 24 > lengths[1] + lengths[2]
    monkeypatch.setattr(capture, "TOKENS_PER_PASS", 24)
    monkeypatch.setattr(capture, "FLUSH_EVERY", 2)


@pytest.mark.usefixtures("small_passes")
def test_features_are_those_of_one_pass_over_the_text(tmp_path: Path) -> None:
    texts = answers()
    store = run(tmp_path, texts)
    assert len(store) == len(texts)
    for index, answer in enumerate(texts):
        ids = [*answer.prompt_token_ids, *answer.answer_token_ids][:50]
        batch = store.batch([index])
        assert batch.token_ids.tolist() == ids
        cache = MODEL.new_cache(num_rows=1, num_tokens=64)
        cache.open()
        _, expected = feed(MODEL.decoder, cache, {0: ids}, capture=LAYERS)
        for layer in LAYERS:
            assert torch.equal(batch.features[layer], expected[layer].to(torch.bfloat16))
        assert store.num_prompt(index) == len(answer.prompt_token_ids)
        assert (store.source(index), store.temperature(index)) == (answer.source, 0.7)


@pytest.mark.usefixtures("small_passes")
def test_the_native_step_gives_its_own_features(tmp_path: Path) -> None:
    decoder = odd_model("bfloat16", "auto")
    model = loaded(decoder)
    texts = answers(5, vocab_size=107)
    header = Header((0, 2), model.config.hidden_size, 107, "native")
    store = FeatureStore.open_to_write(tmp_path, header)
    runner = new_runner(model, num_rows=3, num_tokens=64)
    capture_features(texts, runner, store, held_out_share=0.0, max_tokens=64)
    for index, answer in enumerate(texts):
        ids = [*answer.prompt_token_ids, *answer.answer_token_ids]
        cache = model.new_cache(num_rows=1, num_tokens=64)
        cache.open()
        _, expected = feed(decoder, cache, {0: ids}, capture=(0, 2))
        for layer in (0, 2):
            features = store.batch([index]).features[layer]
            assert torch.equal(features, expected[layer].to(torch.bfloat16))


@pytest.mark.usefixtures("small_passes")
def test_killed_and_called_again_a_run_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_syncs(monkeypatch)
    texts = answers()
    run(tmp_path / "whole", texts)
    expected = contents(tmp_path / "whole")
    calls: list[int] = []
    run(tmp_path / "counted", texts, progress=lambda done, total: calls.append(done))
    for index in range(0, len(calls) - 1, 2):
        directory = tmp_path / f"killed-{index}"
        assert killed(lambda d=directory, n=index: run(d, texts, progress=KillAfter(n)))
        assert len(FeatureStore.open(directory)) < len(texts)
        run(directory, texts)
        assert contents(directory) == expected


@pytest.mark.usefixtures("small_passes")
def test_killed_within_a_pass_a_run_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some texts of the pass are stored then: the others still share it with them, because features
    may depend on it in the last bit."""
    without_syncs(monkeypatch)
    texts = answers()
    sizes: list[int] = []
    extend = Runner.extend

    def counting(runner: Runner, seqs: list[Sequence], *args: Any, **named: Any) -> Scores:
        sizes.append(len(seqs))
        return extend(runner, seqs, *args, **named)

    monkeypatch.setattr(Runner, "extend", counting)
    run(tmp_path / "whole", texts)
    passes = list(sizes)
    write = FeatureStore._write
    for calls in range(2, 4 * len(texts), 8):
        kill = KillAfter(calls)

        def torn(self: FeatureStore, *args: Any, kill: KillAfter = kill) -> None:
            kill()
            write(self, *args)

        directory = tmp_path / f"killed-{calls}"
        with monkeypatch.context() as patch:
            patch.setattr(FeatureStore, "_write", torn)
            assert killed(lambda d=directory: run(d, texts))
        assert contents(directory) != contents(tmp_path / "whole")
        sizes.clear()
        run(directory, texts)
        assert sizes == passes[-len(sizes) :]
        assert contents(directory) == contents(tmp_path / "whole")


def test_progress_counts_tokens_and_remembers_those_there_are(tmp_path: Path) -> None:
    texts, told = answers(), []
    run(tmp_path, texts[:4], progress=lambda *counts: told.append(counts))
    store = run(tmp_path, texts, progress=lambda *counts: told.append(counts))
    total = sum(store.num_tokens(i) for i in range(len(store)))
    assert told[-1] == (total, total)
    first = sum(store.num_tokens(i) for i in range(4))
    assert (first, total) in told
    assert told[0] == (0, first)


def test_equal_answers_are_captured_once_and_hopeless_prompts_not_at_all(tmp_path: Path) -> None:
    texts = answers(3)
    too_long = Answer("long", tuple(range(50)), (1, 2), 0.0)
    just_fits = Answer("fits", tuple(range(49)), (1, 2), 0.0)
    store = run(tmp_path, [*texts, too_long, *texts, just_fits])
    assert len(store) == 4
    assert [store.num_tokens(3), store.num_prompt(3)] == [50, 49]


def test_what_is_held_out_depends_on_the_prompt_alone(tmp_path: Path) -> None:
    texts = answers(40)
    store = run(tmp_path / "a", texts)
    held_out = [texts[i].prompt_token_ids for i in range(40) if store.is_held_out(i)]
    assert 4 <= len(held_out) <= 20
    others = [Answer("x", t.prompt_token_ids, (1, 2, 3), 0.0) for t in reversed(texts)]
    store = run(tmp_path / "b", others)
    again = [others[i].prompt_token_ids for i in range(40) if store.is_held_out(i)]
    assert sorted(again) == sorted(held_out)


@pytest.mark.parametrize(
    ("num_answers", "held_out"), [(10, 2.5), (60, 8), (1000, 30), (100_000, 200)]
)
def test_the_held_out_share_keeps_their_number_reasonable(num_answers: int, held_out: int) -> None:
    assert held_out_share(num_answers) * num_answers == pytest.approx(held_out)


def test_what_does_not_fit_is_refused_before_the_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = Header(LAYERS, 32, 96, MODEL.fingerprint)
    store = FeatureStore.open_to_write(tmp_path, header)
    runner = new_runner(MODEL, num_tokens=40)
    with pytest.raises(OptionError, match="up to 129 tokens"):
        capture_features(answers(), runner, store, held_out_share=0.0, max_tokens=129)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(OptionError, match="free where"):
        capture_features(answers(), runner, store, held_out_share=0.0, max_tokens=40)
    assert len(store) == 0
