"""A new head starts from its target's last layer, as far as the two are of one kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_files import write_hf
from tiny import tiny_model

from outpace.errors import ModelError, OptionError
from outpace.heads.target_parts import TargetParts
from outpace.models.load import load_model
from outpace.models.open import open_checkpoint
from outpace.training.eagle import EagleOptions, EagleTrainee
from outpace.training.eagle_init import (
    default_feature_layers,
    eagle_from_target,
    new_eagle_config,
)
from outpace.training.trainee import TrainingBatch
from outpace.training.trainees import KINDS, DraftSettings


class LargeFeatures:
    """A store of one sequence whose layer l has activations of size 2 ** l."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __len__(self) -> int:
        return 1

    def is_held_out(self, index: int) -> bool:
        return False

    def batch(self, indices: list[int]) -> TrainingBatch:
        signs = torch.randn(40, self._width, generator=torch.Generator().manual_seed(1)).sign()
        features = {layer: signs * 2.0**layer for layer in range(9)}
        is_answer = torch.arange(40) > 20
        return TrainingBatch(torch.zeros(40, dtype=torch.int64), features, is_answer, (0, 40))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> TargetParts:
    path = write_hf(tmp_path_factory.mktemp("target") / "model")
    return TargetParts(load_model(path, model_impl="torch", dtype="float32"))


def started(parts: TargetParts, **shape: Any) -> EagleTrainee:
    config = new_eagle_config(parts.config, 30, **shape)
    store: Any = LargeFeatures(parts.hidden_size)
    options = EagleOptions(compute_dtype=torch.float32)
    return eagle_from_target(config, parts, store, np.arange(30), options)


def last_layer(parts: TargetParts, name: str) -> torch.Tensor:
    prefix = f"model.layers.{parts.num_layers - 1}."
    return open_checkpoint(Path(parts.name)).load(prefix + name).float()


def test_feature_layers_are_low_middle_and_high() -> None:
    assert default_feature_layers(30) == (2, 15, 27)
    assert default_feature_layers(7) == (2, 3, 4)
    assert default_feature_layers(2) == (0, 1, 2)


def test_a_new_head_is_the_last_layer_on_the_highest_feature(parts: TargetParts) -> None:
    layers = (0, 1, 2)
    trainee = started(parts, feature_layers=layers, intermediate_size=10)
    size, layer = parts.hidden_size, trainee.head.layer
    assert trainee.feature_scales == pytest.approx((1.0, 2.0, 4.0))
    passed = trainee.head.fc.weight[:, -size:] - torch.eye(size)
    assert passed.std().item() == pytest.approx(0.02, rel=0.3)
    norm = last_layer(parts, "input_layernorm.weight")
    wanted = last_layer(parts, "self_attn.q_proj.weight") * norm
    torch.testing.assert_close(layer.self_attn.q_proj.weight.detach()[:, size:], wanted)
    wanted = last_layer(parts, "self_attn.o_proj.weight") / 4
    torch.testing.assert_close(layer.self_attn.o_proj.weight.detach(), wanted, rtol=1e-5, atol=0)
    down = last_layer(parts, "mlp.down_proj.weight")
    chosen = sorted(range(down.shape[1]), key=lambda i: -float(down[:, i].norm()))[:10]
    gate = last_layer(parts, "mlp.gate_proj.weight")[sorted(chosen)]
    torch.testing.assert_close(layer.mlp.gate_proj.weight.detach(), gate)
    final_norm = torch.from_numpy(np.array(parts.final_norm))
    torch.testing.assert_close(trainee.head.norm.weight.detach(), final_norm)
    rows = torch.from_numpy(np.array(parts.head_rows(list(range(30)))))
    torch.testing.assert_close(trainee.head.lm_head.weight.detach(), rows)
    assert not trainee.head.lm_head.weight.requires_grad


def test_what_has_another_shape_starts_small_and_random(parts: TargetParts) -> None:
    heads = parts.config.num_attention_heads
    trainee = started(parts, feature_layers=(0, 1, 2), num_key_value_heads=heads)
    attention = trainee.head.layer.self_attn
    assert attention.k_proj.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert not torch.equal(attention.q_proj.weight.std(), attention.k_proj.weight.std())


def test_eagle_1_takes_the_last_feature_as_the_target_norms_it(parts: TargetParts) -> None:
    trainee = started(parts, algorithm="eagle")
    assert trainee.head.config.feature_layers == (parts.num_layers,)
    assert trainee.feature_scales == (1.0,)
    size = parts.hidden_size
    torch.testing.assert_close(
        trainee.head.fc.weight.detach()[:, size:].diag(), torch.ones(size), atol=0.2, rtol=0
    )
    assert trainee.capture == (parts.num_layers,)


def test_an_unknown_algorithm_is_refused(parts: TargetParts) -> None:
    with pytest.raises(OptionError, match="eagle3 or eagle, got 'hydra'"):
        new_eagle_config(parts.config, 30, algorithm="hydra")


@pytest.mark.parametrize("kind", KINDS)
def test_targets_with_another_final_norm_are_refused(kind: str) -> None:
    """What a draft is to learn is computed through an RMS norm; it would learn something else."""
    other = TargetParts(tiny_model(vocab_size=107, hidden_size=32, norm="layer"))
    with pytest.raises(ModelError, match="is a layer norm; use another method"):
        DraftSettings(kind=kind).check(other)


def test_key_and_value_heads_are_shared_evenly(parts: TargetParts) -> None:
    with pytest.raises(OptionError, match="cannot share 3 key and value heads evenly"):
        new_eagle_config(parts.config, 20, num_key_value_heads=3)
