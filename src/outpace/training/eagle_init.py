"""Where training of an EAGLE head starts: from its target's last layer, or from another head."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outpace.errors import OptionError
from outpace.heads.config import EagleConfig, usual_feature_layers
from outpace.heads.eagle import EagleModule, GatedMLP
from outpace.heads.plain_rope import plain_rope
from outpace.models.config import ModelConfig
from outpace.models.hub import names
from outpace.models.open import open_checkpoint
from outpace.training.batches import training_indices
from outpace.training.eagle import EagleOptions, EagleTrainee, scale_by_column
from outpace.training.targets import TargetHead

if TYPE_CHECKING:
    from outpace.heads.checkpoint import EagleCheckpoint
    from outpace.heads.target_parts import TargetParts
    from outpace.training.store import FeatureStore

INITIAL_DEVIATION = 0.02
SCALE_SAMPLE = 64
"""Sequences that the size of features is measured on."""


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """The usual ones, or of a target too small for these the embedding, the middle and the last."""
    low, middle, high = usual_feature_layers(num_layers)
    return (low, middle, high) if low < middle < high else (0, middle, num_layers)


def new_eagle_config(
    target: ModelConfig,
    draft_vocab_size: int,
    *,
    algorithm: str = "eagle3",
    feature_layers: tuple[int, ...] | None = None,
    intermediate_size: int | None = None,
    num_key_value_heads: int | None = None,
) -> EagleConfig:
    """A head of its target's shape: same width, heads and positions.

    feature_layers: see `default_feature_layers`; "eagle" always takes the last. intermediate_size:
    neurons of the MLP (None: the target's). Raises OptionError for heads that cannot be.
    """
    if algorithm not in ("eagle3", "eagle"):
        raise OptionError(f"algorithm must be eagle3 or eagle, got {algorithm!r}")
    rope = next((kind.rope for kind in target.layers if kind.rope is not None), None)
    if rope is None:
        raise OptionError(f"{target.name}: EAGLE heads need a target with rotary positions")
    num_kv_heads = num_key_value_heads or target.num_key_value_heads
    if target.num_attention_heads % num_kv_heads:
        raise OptionError(
            f"the {target.num_attention_heads} heads cannot share {num_kv_heads} key and value "
            "heads evenly; give num_kv_heads a number that divides them"
        )
    last = (target.num_hidden_layers,)
    layers = feature_layers or default_feature_layers(target.num_hidden_layers)
    return EagleConfig(
        algorithm=algorithm,
        feature_layers=layers if algorithm == "eagle3" else last,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=intermediate_size or target.intermediate_size,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.norm_eps,
        rope=plain_rope(rope, target.head_dim),
        max_position_embeddings=target.max_position_embeddings,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        norm_before_residual=algorithm == "eagle3",
    )


def eagle_from_target(
    config: EagleConfig,
    parts: TargetParts,
    store: FeatureStore,
    draft_token_ids: Int64[np.ndarray, " Vd"],
    options: EagleOptions,
    *,
    seed: int = 0,
) -> EagleTrainee:
    """A head that starts as a copy of its target's last layer, on the highest captured feature.

    Where the target's last layer is of another kind than a head's (other norms, biases, another
    number of heads), that part starts from N(0, 0.02).
    """
    torch.manual_seed(seed)
    scales = feature_scales(store, config)
    module = EagleModule(config)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, INITIAL_DEVIATION)
        _pass_through(module.fc.weight, config)
        if config.algorithm == "eagle3":
            module.norm.weight.copy_(torch.from_numpy(parts.final_norm))
        (size,) = sizes_of(store, config.feature_layers[-1:])
        # What a residual is in the head: about 1, or of "eagle" the size of the final norm.
        own = float(np.sqrt(np.square(parts.final_norm).mean()))
        residual_scale = size / own if config.algorithm == "eagle" else size
        _copy_last_layer(module, config, parts, residual_scale)
    return _trainee(module, parts, draft_token_ids, scales, options)


def eagle_from_head(
    head: EagleCheckpoint,
    parts: TargetParts,
    store: FeatureStore,
    options: EagleOptions,
    draft_token_ids: Int64[np.ndarray, " Vd"] | None = None,
) -> EagleTrainee:
    """A head that goes on from another one's weights.

    draft_token_ids: its new draft vocabulary (None: the one it has). An output head that is trained
    on keeps its rows for the tokens that both vocabularies have; the target's rows stand elsewhere.
    """
    if draft_token_ids is None:
        draft_token_ids = head.draft_token_ids
    config = replace(head.config, draft_vocab_size=len(draft_token_ids))
    scales = feature_scales(store, config)
    module = EagleModule(config)
    tensors = head.weights(parts)
    old_rows = tensors.pop("lm_head.weight")
    if config.algorithm == "eagle3":
        tensors["fc.weight"] = tensors["fc.weight"] * scale_by_column(config, scales)
    module.load_state_dict({"lm_head.weight": module.lm_head.weight, **tensors})
    trainee = _trainee(module, parts, draft_token_ids, scales, options)
    if options.train_head:
        _, at_new, at_old = np.intersect1d(
            draft_token_ids, head.draft_token_ids, assume_unique=True, return_indices=True
        )
        with torch.no_grad():
            module.lm_head.weight[at_new] = old_rows[at_old]
    return trainee


def feature_scales(store: FeatureStore, config: EagleConfig) -> tuple[float, ...]:
    """What a head in training divides its captured layers by: their size where `fc` reads them as
    they are, 1 where a norm stands before it."""
    layers = config.feature_layers
    if config.algorithm == "eagle" or config.norm_before_fc or config.fc_norm:
        return (1.0,) * len(layers)
    return sizes_of(store, layers)


def sizes_of(store: FeatureStore, layers: List[int]) -> tuple[float, ...]:
    """Root mean square of a token's activations after each layer, the median over a sample of the
    training sequences: a mean would be ruled by the few tokens with huge ones (attention sinks)."""
    indices = training_indices(store)
    sample = indices[:: max(1, len(indices) // SCALE_SAMPLE)][:SCALE_SAMPLE]
    features = store.batch(sample).features
    return tuple(
        float(features[layer].float().square().mean(dim=1).sqrt().median()) for layer in layers
    )


def _trainee(
    module: EagleModule,
    parts: TargetParts,
    draft_token_ids: Int64[np.ndarray, " Vd"],
    scales: tuple[float, ...],
    options: EagleOptions,
) -> EagleTrainee:
    rows = torch.from_numpy(np.array(parts.head_rows(draft_token_ids.tolist()), np.float32))
    with torch.no_grad():
        module.lm_head.weight.copy_(rows)
    module.lm_head.weight.requires_grad_(options.train_head)
    target = TargetHead(
        layer=parts.num_layers,
        norm=torch.from_numpy(np.array(parts.final_norm, np.float32)),
        eps=parts.norm_eps,
        weight=rows.to(options.compute_dtype),
        draft_token_ids=torch.from_numpy(draft_token_ids),
        vocab_size=parts.vocab_size,
        softcap=parts.config.final_softcap,
    )
    embedding = torch.from_numpy(
        np.array(parts.embedding_rows(list(range(parts.vocab_size))), np.float32)
    )
    return EagleTrainee(module, target, embedding, scales, parts, draft_token_ids, options)


def _pass_through(fc: Tensor, config: EagleConfig) -> None:
    """Let the highest feature ("eagle": the feature, behind the embedding) pass `fc` as it is."""
    size = config.hidden_size
    if config.target_hidden_size == size:
        fc[:, -size:] += torch.eye(size)


def _copy_last_layer(
    module: EagleModule, config: EagleConfig, parts: TargetParts, residual_scale: float
) -> None:
    """Take what fits from the target's last layer.

    residual_scale: how much larger the residual is in the target than in the head: what is added
    to it, by attention and MLP, shrinks as much. The head's own norms have weight one, so the
    target's are worked into the columns that read them.
    """
    target = parts.config
    if target.norm != "rms" or target.block != "pre":
        return
    checkpoint = open_checkpoint(names.resolve(parts.name))

    def load(name: str) -> Tensor:
        return checkpoint.load(f"model.layers.{target.num_hidden_layers - 1}.{name}").float()

    layer, size = module.layer, config.hidden_size
    norm = load("input_layernorm.weight") + target.norm_offset
    attention = layer.self_attn
    for name in ("q_proj", "k_proj", "v_proj"):
        stored = load(f"self_attn.{name}.weight") * norm
        _take(getattr(attention, name).weight[:, -size:], stored)
    _take(layer.self_attn.o_proj.weight, load("self_attn.o_proj.weight") / residual_scale)
    after = load("post_attention_layernorm.weight") + target.norm_offset
    _take(layer.post_attention_layernorm.weight, after)
    if target.gated_mlp and target.activation == "silu":
        _take_neurons(layer.mlp, load, residual_scale)


def _take_neurons(mlp: GatedMLP, load: Callable[[str], Tensor], scale: float) -> None:
    """The neurons with the largest output columns, as many as the head's MLP has."""
    down = load("mlp.down_proj.weight")
    largest = down.norm(dim=0).argsort(descending=True, stable=True)
    chosen = largest[: mlp.down_proj.weight.shape[1]].sort().values
    _take(mlp.down_proj.weight, down[:, chosen] / scale)
    for name in ("gate_proj", "up_proj"):
        _take(getattr(mlp, name).weight, load(f"mlp.{name}.weight")[chosen])


def _take(own: Float[Tensor, "..."], stored: Float[Tensor, "..."]) -> None:
    if own.shape == stored.shape:
        own.copy_(stored)
