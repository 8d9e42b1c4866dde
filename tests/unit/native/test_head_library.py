"""The ctypes side of EAGLE heads: what the library refuses, and that heads and decoders differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from outpace.errors import ModelError
from outpace.native.config import EagleParts, NativeConfig, NativeLayer
from outpace.native.eagle import Chain, NativeEagleModel
from outpace.native.interface import Choice, EagleKind, WeightFormat
from outpace.native.library import status
from outpace.native.model import NativeCache, NativeSegment
from outpace.native.pool import ThreadPool
from outpace.native.weights import Norm, PackedLinear

found = status()
pytestmark = pytest.mark.skipif(found.path is None, reason=f"no native step: {found.reason}")

VOCAB, DRAFTED, HIDDEN, INNER, HEADS, DIM, POSITIONS = 64, 20, 48, 64, 4, 12, 32
DRAFT_IDS = np.arange(5, 5 + DRAFTED, dtype=np.int32)


def head_config(kind: EagleKind = EagleKind.EAGLE3) -> NativeConfig:
    rng = np.random.default_rng(0)

    def linear(out: int, in_: int) -> PackedLinear:
        values = rng.standard_normal((out, in_), dtype=np.float32) / np.float32(np.sqrt(in_))
        return PackedLinear.packed(WeightFormat.F32, out, in_, values)

    def norm() -> Norm:
        return Norm(rng.uniform(0.8, 1.2, HIDDEN).astype(np.float32))

    is_eagle3 = kind == EagleKind.EAGLE3
    layer = NativeLayer(
        qkv=linear(3 * HEADS * DIM, (1 + is_eagle3) * HIDDEN),
        o=linear(HIDDEN, HEADS * DIM),
        up=linear(2 * INNER, HIDDEN),
        down=linear(HIDDEN, INNER),
        input_norm=norm(),
        post_attention_norm=norm(),
        rope=0,
    )
    parts = {"hidden_norm": norm()} if is_eagle3 else {"fc": linear(HIDDEN, 2 * HIDDEN)}
    return NativeConfig(
        vocab_size=VOCAB,
        num_logits=DRAFTED,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=DIM,
        embedding=linear(VOCAB, HIDDEN),
        head=linear(DRAFTED, HIDDEN),
        final_norm=norm(),
        layers=[layer],
        attention_scale=0.3,
        norm_eps=1e-5,
        eagle=EagleParts(kind=kind, draft_ids=DRAFT_IDS, **parts),
    )


def new_model(config: NativeConfig) -> NativeEagleModel:
    model = NativeEagleModel(config, ThreadPool.shared(2))
    angles = np.arange(POSITIONS)[:, None] * 10.0 ** -np.arange(DIM // 2)
    model.set_rope(0, np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32))
    return model


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def chains(start: int = 0, choice: int = Choice.BEST, temperature: float = 0.0) -> list[Chain]:
    """One pending column and two steps."""
    noise = [] if choice == Choice.BEST else [0.0, 0.0]
    return [Chain(0, start, 1, 2, cast(Choice, choice), temperature, noise)]


X = np.linspace(-1, 1, HIDDEN, dtype=np.float32)[None]


@pytest.mark.parametrize("kind", EagleKind)
def test_norms_that_stand_in_the_configuration_are_used(kind: EagleKind) -> None:
    """EAGLE-1 goes without the two that it need not have: a head with them differs."""
    config = head_config(kind)
    assert config.eagle is not None
    bare_layer = replace(config.layers[0], input_norm=Norm())
    without = [replace(config, layers=[bare_layer]), replace(config, final_norm=Norm())]
    logits = []
    for each in (config, *without):
        if kind == EagleKind.EAGLE3 and each is not config:
            with pytest.raises(ModelError, match=r"input_norm has no weight|final_norm lacks"):
                new_model(each)
            continue
        model = new_model(each)
        logits.append(np.empty((1, DRAFTED), np.float32))
        model.forward(
            NativeCache(model, 1, 16),
            ids(3),
            [NativeSegment(0, 0, 1)],
            ids(0),
            logits=logits[-1],
            x=X,
        )
    assert all(not np.allclose(logits[0], other) for other in logits[1:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": 2}, "unknown kind 2 of EAGLE head; known are 1 and 3"),
        (
            {"draft_ids": ids(*range(50, 50 + DRAFTED))},
            "draft token 14 is token 64 of a vocabulary",
        ),
        ({"hidden_norm": Norm()}, "hidden_norm has no weight"),
        ({"kind": EagleKind.EAGLE1}, r"fc is \[0, 0\]; the configuration makes it \[48, 96\]"),
    ],
)
def test_parts_that_make_no_head(changes: dict[str, Any], message: str) -> None:
    config = head_config()
    assert config.eagle is not None
    with pytest.raises(ModelError, match=message):
        new_model(replace(config, eagle=replace(config.eagle, **changes)))


def test_shapes_that_make_no_head() -> None:
    config = head_config()
    two = replace(config, layers=[*config.layers] * 2)
    with pytest.raises(ModelError, match="has one pre-norm layer and no position embedding"):
        new_model(two)
    with pytest.raises(
        ModelError, match=r"qkv is \[144, 96\]; the configuration makes it \[144, 48"
    ):
        new_model(replace(config, eagle=None, head=config.embedding))


def test_calls_that_a_head_does_not_take() -> None:
    model = new_model(head_config())
    cache = NativeCache(model, 1, POSITIONS)
    segment, logits = [NativeSegment(0, 0, 1)], np.empty((1, DRAFTED), np.float32)
    with pytest.raises(ModelError, match="start from given x"):
        model.forward(cache, ids(3), segment, ids(0), logits=logits)
    with pytest.raises(ModelError, match="use op_eagle_draft"):
        model.draft(cache, ids(0), ids(0), ids(1), ids(3), ids(2))
    with pytest.raises(ModelError, match="in whole passes only"):
        model.layer_forward(cache, 0, X.copy(), segment)
    hidden = np.empty((1, HIDDEN), np.float32)
    with pytest.raises(ModelError, match="leave outputs alone"):
        model.forward(
            cache, ids(3), segment, ids(0), logits=logits, x=X, capture=ids(1), hidden=[hidden]
        )


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (chains(31), "drafting to slot 32 of a cache for 32 tokens"),
        (chains(0, Choice.DRAWN, -1.0), "a temperature of -1"),
        (chains(0, Choice.DRAWN, 0.0), "a temperature of 0"),
        (chains(0, Choice.DRAWN, float("inf")), "a temperature of inf"),
        (chains(0, Choice.DRAWN, float("nan")), "a temperature of nan"),
        (chains(0, 3, 1.0), "unknown choice 3"),
    ],
)
def test_drafts_that_cannot_be(chain: list[Chain], message: str) -> None:
    model = new_model(head_config())
    cache = NativeCache(model, 1, POSITIONS)
    with pytest.raises(ModelError, match=message):
        model.draft_chains(cache, chain, [3], X)


@pytest.mark.parametrize(
    ("chain", "width", "message"),
    [
        (chains(), DRAFTED + 1, "ranking 21 of 20 draft tokens"),
        (chains(0, Choice.DRAWN, 1.0), 3, "sequence 0 is sampled"),
    ],
)
def test_rankings_that_cannot_be(chain: list[Chain], width: int, message: str) -> None:
    model = new_model(head_config())
    cache = NativeCache(model, 1, POSITIONS)
    with pytest.raises(ModelError, match=message):
        model.draft_chains(cache, chain, [3], X, width=width)


@pytest.mark.parametrize("kind", EagleKind)
def test_features_without_a_matrix_for_them(kind: EagleKind) -> None:
    model = new_model(head_config(kind))
    cache = NativeCache(model, 1, POSITIONS)
    start_from = X if kind == EagleKind.EAGLE3 else np.concatenate([X, X], axis=1)
    with pytest.raises(ModelError, match="the head has no fc for them"):
        model.draft_chains(cache, chains(), [3], start_from, has_features=True)


def test_a_decoder_drafts_no_columns() -> None:
    config = head_config()
    layer = replace(config.layers[0], qkv=PackedLinear.packed(*_zeros(3 * HEADS * DIM, HIDDEN)))
    decoder = new_model(
        replace(config, eagle=None, layers=[layer], head=config.embedding, num_logits=VOCAB)
    )
    with pytest.raises(ModelError, match="a model that is no EAGLE head"):
        decoder.draft_chains(NativeCache(decoder, 1, POSITIONS), chains(), [3], X)


def _zeros(out: int, in_: int) -> tuple[WeightFormat, int, int, np.ndarray]:
    return WeightFormat.F32, out, in_, np.zeros((out, in_), np.float32)
