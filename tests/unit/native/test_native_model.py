"""The ctypes side of models and caches: a random model driven through every call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest

from outpace.errors import ModelError
from outpace.native.config import NativeConfig, NativeLayer
from outpace.native.interface import WeightFormat
from outpace.native.library import status
from outpace.native.model import NativeCache, NativeModel, NativeSegment
from outpace.native.pool import ThreadPool
from outpace.native.weights import Norm, PackedLinear

found = status()
pytestmark = pytest.mark.skipif(found.path is None, reason=f"no native step: {found.reason}")

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, DIM, LAYERS, POSITIONS = 64, 48, 64, 4, 2, 12, 2, 64
TOKENS = np.array([3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32], np.int32)


def random_config(rng: np.random.Generator) -> NativeConfig:
    def linear(out: int, in_: int) -> PackedLinear:
        values = rng.standard_normal((out, in_), dtype=np.float32) / np.float32(np.sqrt(in_))
        return PackedLinear.packed(WeightFormat.F32, out, in_, values)

    def norm() -> Norm:
        return Norm(rng.uniform(0.8, 1.2, HIDDEN).astype(np.float32))

    def layer() -> NativeLayer:
        return NativeLayer(
            qkv=linear((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
            o=linear(HIDDEN, HEADS * DIM),
            up=linear(2 * INNER, HIDDEN),
            down=linear(HIDDEN, INNER),
            input_norm=norm(),
            post_attention_norm=norm(),
            rope=0,
        )

    embedding = linear(VOCAB, HIDDEN)
    return NativeConfig(
        vocab_size=VOCAB,
        num_logits=VOCAB - 2,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        embedding=embedding,
        head=embedding,
        final_norm=norm(),
        layers=[layer() for _ in range(LAYERS)],
        attention_scale=DIM**-0.5,
        norm_eps=1e-5,
        embedding_scale=5.0,
    )


def random_model() -> NativeModel:
    """Its weights, norms and rotary tables are referenced by nothing but the model."""
    model = NativeModel(random_config(np.random.default_rng(0)), ThreadPool.shared(2))
    angles = np.arange(POSITIONS)[:, None] * 10.0 ** -np.arange(DIM // 2)
    model.set_rope(0, np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32))
    gc.collect()
    return model


@pytest.fixture
def model() -> NativeModel:
    return random_model()


def forward(
    model: NativeModel, cache: NativeCache, ids: np.ndarray, segments: Sequence[NativeSegment]
) -> tuple[np.ndarray, np.ndarray]:
    logits = np.empty((len(ids), model.config.num_logits), np.float32)
    best = np.empty(len(ids), np.int32)
    rows = np.arange(len(ids), dtype=np.int32)
    model.forward(cache, ids, segments, rows, logits=logits, best=best)
    return logits, best


def chain(model: NativeModel, ids: np.ndarray = TOKENS) -> np.ndarray:
    cache = NativeCache(model, 1, POSITIONS)
    return forward(model, cache, ids, [NativeSegment(0, 0, len(ids))])[0]


def test_one_pass(model: NativeModel) -> None:
    cache = NativeCache(model, 1, POSITIONS)
    logits, best = forward(model, cache, TOKENS, [NativeSegment(0, 0, len(TOKENS))])
    assert np.isfinite(logits).all()
    np.testing.assert_array_equal(best, logits.argmax(axis=1))
    assert len(set(best.tolist())) > 3


def test_more_segments_than_before_trees_and_keep(model: NativeModel) -> None:
    whole = chain(model)
    cache = NativeCache(model, 3, POSITIONS)
    parents = np.array([-1, -1, 1, 2], np.int32)  # nodes 1, 2, 3 go on with the text
    tree = np.array([50, *TOKENS[4:7]], np.int32)
    forward(model, cache, TOKENS[:4], [NativeSegment(2, 0, 4)])
    ids = np.concatenate([TOKENS[:5], tree, TOKENS[:2]])
    segments = [NativeSegment(0, 0, 5), NativeSegment(2, 4, 4, parents), NativeSegment(1, 0, 2)]
    logits, _ = forward(model, cache, ids, segments)
    assert logits[:5].tobytes() == whole[:5].tobytes()
    assert logits[6:9].tobytes() == whole[4:7].tobytes()
    assert logits[9:].tobytes() == whole[:2].tobytes()
    cache.keep(2, 4, np.array([1, 2, 3], np.int32))
    cache.copy(2, 1, 0, 7)
    rest, _ = forward(model, cache, TOKENS[7:], [NativeSegment(1, 7, 5)])
    assert rest.tobytes() == whole[7:].tobytes()


def test_a_tree_needs_as_many_positions_as_it_is_deep(model: NativeModel) -> None:
    """Not as many as it has nodes, for which the cache has slots."""
    ids = np.arange(POSITIONS - 2, dtype=np.int32) % (VOCAB - 2)
    cache = NativeCache(model, 1, 2 * POSITIONS)
    forward(model, cache, ids, [NativeSegment(0, 0, len(ids))])
    for last, fits in ((1, True), (6, False)):
        parents = np.array([*[-1] * 6, 0, last], np.int32)
        segments = [NativeSegment(0, len(ids), 8, parents)]
        with nullcontext() if fits else pytest.raises(ModelError, match="positions"):
            forward(model, cache, TOKENS[:8], segments)


def test_capture_and_single_layers(model: NativeModel) -> None:
    cache = NativeCache(model, 2, POSITIONS)
    hidden = [np.empty((len(TOKENS), HIDDEN), np.float32) for _ in range(LAYERS + 1)]
    nothing = np.empty(0, np.int32)
    capture = np.arange(LAYERS + 1, dtype=np.int32)
    segments = [NativeSegment(0, 0, len(TOKENS))]
    model.forward(cache, TOKENS, segments, nothing, capture=capture, hidden=hidden)
    np.testing.assert_allclose(
        hidden[0], 5.0 * np.stack([model.config.embedding.row(i) for i in TOKENS]), rtol=1e-6
    )
    x = hidden[0].copy()
    for layer in range(LAYERS):
        model.layer_forward(cache, layer, x, [NativeSegment(1, 0, len(TOKENS))])
        assert x.tobytes() == hidden[layer + 1].tobytes()
    # What a pass captured is not written by the next one.
    before = hidden[1].tobytes()
    forward(model, cache, TOKENS[::-1].copy(), segments)
    assert hidden[1].tobytes() == before


def test_drafts_are_what_greedy_passes_choose(model: NativeModel) -> None:
    starts, pending, steps = (np.array(each, np.int32) for each in ([0, 0], [5, 3], [2, 4]))
    cache = NativeCache(model, 2, POSITIONS)
    ids = np.concatenate([TOKENS[:5], TOKENS[5:8]])
    drafted = model.draft(cache, np.array([1, 0], np.int32), starts, pending, ids, steps)
    for seq, prompt in enumerate((TOKENS[:5], TOKENS[5:8])):
        text = prompt
        for _ in range(steps[seq]):
            text = np.append(text, np.int32(chain(model, text)[-1].argmax()))
        assert drafted[seq].tolist() == [*text[len(prompt) :], -1, -1][:4]


def test_drafts_of_the_first_layers_are_what_their_passes_choose(model: NativeModel) -> None:
    starts, pending, steps = (np.array(each, np.int32) for each in ([0, 0], [5, 3], [6, 4]))
    rows, prompts = np.array([1, 0], np.int32), (TOKENS[:5], TOKENS[5:8])
    drafts = {}
    for num_layers in (0, 1, LAYERS):
        cache = NativeCache(model, 2, POSITIONS)
        ids = np.concatenate(prompts)
        drafts[num_layers] = model.draft(cache, rows, starts, pending, ids, steps, num_layers)
        for seq, prompt in enumerate(prompts):
            plain = NativeCache(model, 1, POSITIONS)
            fed, start, last = prompt, 0, np.zeros(1, np.int32)
            for step in range(steps[seq]):
                best, segments = np.empty(1, np.int32), [NativeSegment(0, start, len(fed))]
                last[0] = len(fed) - 1
                model.forward(plain, fed, segments, last, best=best, num_layers=num_layers)
                assert drafts[num_layers][seq, step] == best[0]
                start, fed = start + len(fed), best
    assert drafts[0].tolist() == drafts[LAYERS].tolist() != drafts[1].tolist()
    for num_layers in (-1, LAYERS + 1):
        with pytest.raises(ModelError, match=f"first {num_layers} layers of a model of {LAYERS}"):
            model.draft(cache, rows, starts, pending, ids, steps, num_layers)


def test_refusals_are_errors_with_the_library_s_sentence(model: NativeModel) -> None:
    cache = NativeCache(model, 1, 20)
    assert cache.capacity == 32
    with pytest.raises(ModelError, match=str(VOCAB)):
        forward(model, cache, np.array([VOCAB], np.int32), [NativeSegment(0, 0, 1)])
    with pytest.raises(ModelError, match="sse9"):
        NativeModel(model.config, model.pool, "sse9")
    with pytest.raises(ModelError):
        NativeCache(model, 0, 16)
    assert NativeCache.num_bytes(model, 2, 20) == 2 * NativeCache.num_bytes(model, 1, 32) > 0


def test_arrays_of_another_type_are_our_own_bugs(model: NativeModel) -> None:
    cache = NativeCache(model, 1, 16)
    for ids in (TOKENS.astype(np.int64), TOKENS[::2]):
        with pytest.raises(AssertionError):
            forward(model, cache, ids, [NativeSegment(0, 0, len(ids))])


def test_memory_goes_with_its_last_user() -> None:
    model = random_model()
    logits = chain(model)
    cache = NativeCache(model, 2, 16)
    gone = [weakref.ref(each) for each in (model, model.config.layers[0].qkv)]
    del model
    gc.collect()
    assert [each() for each in gone] == [None, None]
    cache.copy(0, 1, 0, 16)  # a cache needs its model only to be made
    assert chain(random_model()).tobytes() == logits.tobytes()
