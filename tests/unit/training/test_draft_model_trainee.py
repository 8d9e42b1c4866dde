"""Draft models: their size for a cost, their network against the decoder, their training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from heads import batch_of
from model_files import CONFIG, write_gguf, write_hf
from tiny import END_TOKEN, feed, tiny_config, tiny_model, tiny_tokenizer

from outpace.errors import ModelError, OptionError
from outpace.heads.target_parts import TargetParts
from outpace.models.load import LoadedModel, load_model
from outpace.models.open import open_checkpoint
from outpace.models.tensors import num_parameters
from outpace.models.tokenizer import Tokenizer, check_same_vocabulary
from outpace.training.draft_model import (
    DraftModelOptions,
    DraftModelTrainee,
    draft_model_from,
    new_draft_model,
    reduced_rows,
)
from outpace.training.draft_size import (
    CHANNELS_PER_LAYER,
    WIDTH_STEP,
    draft_config,
    propose_size,
    size_of_width,
    weights_read,
)
from outpace.training.optimisers import make_optimisers
from outpace.training.trainee import Trainee, TrainingBatch

# The shape of the default model: where a proposal is to make sense.
LARGE = tiny_config(
    vocab_size=49152,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    hidden_size=576,
    intermediate_size=1536,
    tie_word_embeddings=True,
)
TEXTS = [[5, 9, 13, 2, 40, 7, 8, 21, 3, 11], [17, 4, 60, 61, 62, 30, 31, 2]]


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return tiny_model(dtype="float32")


@pytest.fixture(scope="module")
def batch(target: LoadedModel) -> TrainingBatch:
    return batch_of(target, TEXTS, num_prompt=3, capture=(2,))


def new_trainee(target: LoadedModel, **options: object) -> DraftModelTrainee:
    parts = TargetParts(target)
    size = size_of_width(parts.config, 32, num_layers=2)
    counts = torch.ones(parts.vocab_size, dtype=torch.int64)
    given = DraftModelOptions(compute_dtype=torch.float32, **options)
    return new_draft_model(parts, size, counts, given, seed=1)


@pytest.mark.parametrize("cost", [0.04, 0.07, 0.1, 0.2, 0.35])
def test_proposed_sizes_cost_about_what_was_asked(cost: float) -> None:
    size = propose_size(LARGE, cost)
    assert size.cost == pytest.approx(cost, rel=0.15)
    assert size.hidden_size % WIDTH_STEP == size.intermediate_size % WIDTH_STEP == 0
    assert size.num_layers == round(size.hidden_size / CHANNELS_PER_LAYER)


def test_the_cost_is_that_of_the_weights_read() -> None:
    size = propose_size(LARGE, 0.1)
    config = draft_config(LARGE, size, LARGE.vocab_size)
    assert size.num_weights == num_parameters(config) == weights_read(config)
    assert size.cost == size.num_weights / num_parameters(LARGE)
    untied = tiny_config(num_layers=1)
    assert weights_read(untied) == num_parameters(untied) - 95 * untied.hidden_size
    assert "0.1" in size.described(LARGE.vocab_size)


@pytest.mark.parametrize("cost", [0.0, 1.0, -1.0])
def test_impossible_costs(cost: float) -> None:
    with pytest.raises(OptionError, match="between 0 and 1"):
        propose_size(LARGE, cost)


def test_widths_come_in_steps() -> None:
    with pytest.raises(OptionError, match="multiple of 32"):
        size_of_width(LARGE, 100)


def test_reduced_rows_keep_what_they_can() -> None:
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(4, 16, generator=generator)
    rows = torch.randn(50, 4, generator=generator) @ basis  # of rank 4
    counts = torch.arange(50)
    kept = reduced_rows(rows, 4, counts)
    assert torch.allclose(kept @ kept.T, rows @ rows.T, atol=1e-3)
    fewer = reduced_rows(rows, 3, counts)
    assert not torch.allclose(fewer @ fewer.T, rows @ rows.T, atol=1e-3)


def test_frequent_tokens_weigh_more() -> None:
    rows = torch.eye(2)
    assert reduced_rows(rows, 1, torch.tensor([9, 0])).abs().tolist() == [[1.0], [0.0]]
    assert reduced_rows(rows, 1, torch.tensor([0, 9])).abs().tolist() == [[0.0], [1.0]]


def test_the_saved_model_computes_what_was_trained(
    target: LoadedModel, batch: TrainingBatch, tmp_path: Path
) -> None:
    trainee: Trainee = new_trainee(target)
    with torch.no_grad():
        for parameter in trainee.module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
            parameter.copy_(parameter.bfloat16())  # what the file keeps
    trainee.save(tmp_path)
    loaded = load_model(tmp_path, dtype="float32", model_impl="torch")
    cache = loaded.new_cache(num_rows=1, num_tokens=16)
    cache.open()
    logits, _ = feed(loaded.decoder, cache, {0: TEXTS[0]})
    with torch.no_grad():
        hidden = trainee.module(batch.token_ids, batch.starts)[: len(TEXTS[0])]
        expected = hidden @ trainee.module.embedding.T
    assert torch.allclose(logits[0], expected, atol=1e-4)


def test_sequences_of_a_batch_do_not_see_each_other(
    target: LoadedModel, batch: TrainingBatch
) -> None:
    module = new_trainee(target).module
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
        together = module(batch.token_ids, batch.starts)
        alone = module(torch.tensor(TEXTS[1]), (0, len(TEXTS[1])))
    assert torch.allclose(together[len(TEXTS[0]) :], alone, atol=1e-5)


def test_training_lowers_the_loss(target: LoadedModel, batch: TrainingBatch) -> None:
    trainee = new_trainee(target)
    optimisers = make_optimisers(trainee.parameter_groups())
    before = trainee.loss(batch, training=False)
    for _ in range(30):
        report = trainee.loss(batch, training=True)
        report.loss.backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    after = trainee.loss(batch, training=False)
    assert float(after.loss) < 0.3 * float(before.loss)
    assert after.accepted[0] > before.accepted[0]
    assert not after.loss.requires_grad


def test_every_parameter_is_trained_once(target: LoadedModel) -> None:
    trainee = new_trainee(target)
    grouped = [id(p) for group in trainee.parameter_groups() for p in group["params"]]
    assert sorted(grouped) == sorted(map(id, trainee.module.parameters()))


def test_accepted_lengths_are_those_of_drafting(target: LoadedModel) -> None:
    """Against drafting token by token from every token of the target's own greedy answers."""
    texts = [continued(target, text[:3], 10) for text in TEXTS]
    batch = batch_of(target, texts, num_prompt=3, capture=(2,))
    trainee = new_trainee(target)
    optimisers = make_optimisers(trainee.parameter_groups())
    for _ in range(12):  # until some drafts are right and some are not
        trainee.loss(batch, training=True).loss.backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    expected: dict[int, int] = {}
    start = 0
    for text in texts:
        for newest in range(3, len(text) - 1):
            expected[start + newest] = drafted_right(trainee, text, newest, steps=4)
        start += len(text)
    newest, lengths = trainee.accepted_lengths(batch, 4)
    found = dict(zip(newest.tolist(), lengths.tolist(), strict=True))
    assert found == expected
    assert len(set(found.values())) > 1


def continued(target: LoadedModel, text: list[int], length: int) -> list[int]:
    """A text and the target's greedy continuation, `length` tokens in all."""
    while len(text) < length:
        cache = target.new_cache(num_rows=1, num_tokens=length)
        cache.open()
        logits, _ = feed(target.decoder, cache, {0: text})
        text = [*text, int(logits[0][-1].argmax())]
    return text


def drafted_right(trainee: DraftModelTrainee, text: list[int], newest: int, steps: int) -> int:
    """How many of the model's own greedy continuation after text[newest] are the text's."""
    context = text[: newest + 1]
    for right in range(min(steps, len(text) - newest - 1)):
        with torch.no_grad():
            hidden = trainee.module(torch.tensor(context), (0, len(context)))[-1]
            token = int((trainee.module.embedding @ hidden).argmax())
        if token != text[len(context)]:
            return right
        context = [*context, token]
    return min(steps, len(text) - newest - 1)


def test_the_next_token_is_judged_by_the_target(target: LoadedModel, batch: TrainingBatch) -> None:
    """KL against the target's own logits, computed the plain way."""
    trainee = new_trainee(target)
    parts = TargetParts(target)
    with torch.no_grad():
        x = trainee.module(batch.token_ids, batch.starts)
        q = (x @ trainee.module.embedding.T).log_softmax(-1)
        feature = batch.features[2].float()
        norm = torch.from_numpy(np.array(parts.final_norm))
        normed = torch.nn.functional.rms_norm(feature, norm.shape, norm, parts.norm_eps)
        head = torch.from_numpy(parts.head_rows(list(range(parts.vocab_size))))
        p = (normed @ head.T).log_softmax(-1)
        each = (p.exp() * (p - q)).sum(-1)
    first, length = 2, len(TEXTS[0])
    rows = [*range(first, length - 1), *range(length + first, length + len(TEXTS[1]) - 1)]
    assert float(trainee.loss(batch, training=False).loss) == pytest.approx(
        float(each[rows].mean()), rel=1e-3
    )


def test_going_on_from_a_saved_model(target: LoadedModel, tmp_path: Path) -> None:
    first = new_trainee(target)
    first.save(tmp_path)
    parts = TargetParts(target)
    second = draft_model_from(tmp_path, parts, first.options)
    for name, value in second.module.state_dict().items():
        assert torch.equal(value, first.module.state_dict()[name].bfloat16().float()), name


def test_other_models_are_no_start(target: LoadedModel, tmp_path: Path) -> None:
    parts, options = TargetParts(target), DraftModelOptions()
    other_words = write_hf(tmp_path / "words")
    with pytest.raises(OptionError, match="another vocabulary"):
        draft_model_from(other_words, parts, options)
    own = TargetParts(load_model(other_words, dtype="float32", model_impl="torch"))
    draft_model_from(other_words, own, options)
    untied = write_hf(tmp_path / "untied", config={"tie_word_embeddings": False})
    with pytest.raises(ModelError, match="no plain Llama"):
        draft_model_from(untied, own, options)


@pytest.mark.parametrize("format", ["hf", "gguf"])
def test_the_saved_tokenizer_is_the_target_s(tmp_path: Path, format: str) -> None:
    write = write_hf if format == "hf" else write_gguf
    source = open_checkpoint(write(tmp_path / "model.gguf")).tokenizer()
    source.save(tmp_path)
    (tmp_path / "config.json").write_text(f'{{"eos_token_id": {sorted(source.end_token_ids)}}}')
    saved = Tokenizer.from_directory(tmp_path)
    check_same_vocabulary(source, saved)
    assert saved.fingerprint() == source.fingerprint()
    assert saved.end_token_ids == source.end_token_ids
    assert saved.bos_id == source.bos_id
    text = "hello  world <tool>42 é<e>"
    assert saved.encode(text) == source.encode(text)
    assert saved.decode(source.encode(text)) == source.decode(source.encode(text))
    messages = [{"role": "user", "content": "hello"}]
    assert saved.apply_chat_template(messages) == source.apply_chat_template(messages)
    assert len(saved.vocab()) <= CONFIG["vocab_size"]


def test_a_tokenizer_made_in_memory_is_saved_too(tmp_path: Path) -> None:
    source = tiny_tokenizer()
    source.save(tmp_path)
    assert Tokenizer.from_directory(tmp_path).vocab() == source.vocab()
    assert Tokenizer.from_directory(tmp_path).encode(END_TOKEN) == source.encode(END_TOKEN)
