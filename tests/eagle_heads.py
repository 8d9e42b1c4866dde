"""Random tiny EAGLE heads, and what they compute, column by column in float64."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outpace.heads.config import EagleConfig
from outpace.models.config import Rope
from outpace.models.rope import default_frequencies

Array = np.ndarray[Any, Any]


def head_config(algorithm: str = "eagle3", **changes: Any) -> EagleConfig:
    """A head for the odd model of `native_models`: 107 tokens, of which it drafts 43."""
    values: dict[str, Any] = {
        "algorithm": algorithm,
        "feature_layers": (0, 1, 2) if algorithm == "eagle3" else (2,),
        "hidden_size": 96,
        "target_hidden_size": 96,
        "intermediate_size": 40,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "vocab_size": 107,
        "draft_vocab_size": 43,
    }
    values |= changes
    rope = Rope(default_frequencies(10000.0, values["head_dim"]))
    return EagleConfig(rope=rope, **values)


def draft_vocabulary(config: EagleConfig, seed: int = 0) -> Array:
    """Which tokens the head drafts, ascending."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(config.vocab_size, config.draft_vocab_size, replace=False)
    return np.sort(chosen).astype(np.int64)


def head_weights(config: EagleConfig, seed: int = 0) -> dict[str, Tensor]:
    """Seeded float32 weights by the names of the speculators layout."""
    rng = np.random.default_rng(seed)
    size, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    kv_heads = config.num_key_value_heads * config.head_dim
    is_eagle3 = config.algorithm == "eagle3"
    read = 2 * size if is_eagle3 else size
    shapes = {
        "fc": (size, config.feature_size if is_eagle3 else 2 * size),
        "layers.0.self_attn.q_proj": (heads, read),
        "layers.0.self_attn.k_proj": (kv_heads, read),
        "layers.0.self_attn.v_proj": (kv_heads, read),
        "layers.0.self_attn.o_proj": (size, heads),
        "layers.0.mlp.gate_proj": (inner, size),
        "layers.0.mlp.up_proj": (inner, size),
        "layers.0.mlp.down_proj": (size, inner),
        "lm_head": (config.draft_vocab_size, size),
    }
    norms = {"layers.0.post_attention_layernorm": size}
    if is_eagle3:
        norms |= {"layers.0.input_layernorm": size, "layers.0.hidden_norm": size, "norm": size}
    if config.norm_before_fc:
        norms["input_norm"] = config.feature_size
    if config.fc_norm:
        norms |= {
            f"fc_norm.{i}": config.target_hidden_size for i in range(len(config.feature_layers))
        }
    weights = {
        name: 1.5 * rng.standard_normal(shape) / np.sqrt(shape[1]) for name, shape in shapes.items()
    } | {name: rng.uniform(0.6, 1.4, size) for name, size in norms.items()}
    return {
        f"{name}.weight": torch.from_numpy(value.astype(np.float32))
        for name, value in weights.items()
    }


@dataclass(eq=False)
class ReferenceHead:
    """One sequence of columns, in float64. keys, values: of the columns so far."""

    config: EagleConfig
    weights: Mapping[str, Tensor]
    embedding: Array
    final_norm: Array
    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)

    def fuse(self, features: Array) -> Array:
        config = self.config
        features = features.astype(np.float64)
        if config.algorithm == "eagle":
            return rms(features, self.final_norm, config.rms_norm_eps)
        if config.norm_before_fc:
            features = self._norm("input_norm", features)
        if config.fc_norm:
            parts = np.split(features, len(config.feature_layers), axis=-1)
            normed = [self._norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)]
            features = np.concatenate(normed, axis=-1)
        return self._linear("fc", features)

    def column(
        self, token_id: int, x: Array, position: int, visible: List[int]
    ) -> tuple[Array, Array]:
        """(logits, what the next column starts from) of one more column, which sees the columns
        `visible` and itself."""
        config, prefix = self.config, "layers.0."
        residual, read = self._joined(self.embedding[token_id].astype(np.float64), x)
        attention = f"{prefix}self_attn."
        dim = config.head_dim
        q, k, v = (self._linear(f"{attention}{n}_proj", read).reshape(-1, dim) for n in "qkv")
        self.keys.append(turn(k, position, config.rope))
        self.values.append(v)
        seen = [*visible, len(self.keys) - 1]
        keys, values = (np.stack([rows[i] for i in seen]) for rows in (self.keys, self.values))
        group = config.num_attention_heads // config.num_key_value_heads
        heads = []
        for head, query in enumerate(turn(q, position, config.rope)):
            scores = keys[:, head // group] @ query / np.sqrt(dim)
            heads.append(softmax(scores) @ values[:, head // group])
        hidden = residual + self._linear(f"{attention}o_proj", np.concatenate(heads))
        normed = self._norm(f"{prefix}post_attention_layernorm", hidden)
        gate, up = (self._linear(f"{prefix}mlp.{n}_proj", normed) for n in ("gate", "up"))
        output = hidden + self._linear(f"{prefix}mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        last = self._norm("norm", output) if config.algorithm == "eagle3" else output
        return self._linear("lm_head", last), last if config.norm_output else output

    def chain(self, token_ids: List[int], x: Array) -> tuple[Array, Array]:
        """Columns one after the other, each of which sees all before it."""
        results = []
        for token_id, row in zip(token_ids, x, strict=True):
            position = len(self.keys)
            results.append(self.column(token_id, row, position, range(position)))
        logits, outputs = zip(*results, strict=True)
        return np.stack(logits), np.stack(outputs)

    def _joined(self, embedding: Array, x: Array) -> tuple[Array, Array]:
        x = x.astype(np.float64)
        if self.config.algorithm == "eagle":
            fused = self._linear("fc", np.concatenate([embedding, x]))
            return fused, fused
        normed = self._norm("layers.0.hidden_norm", x)
        read = np.concatenate([self._norm("layers.0.input_layernorm", embedding), normed])
        return normed if self.config.norm_before_residual else x, read

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].numpy().astype(np.float64).T

    def _norm(self, name: str, x: Array) -> Array:
        return rms(x, self.weights[f"{name}.weight"].numpy(), self.config.rms_norm_eps)


def rms(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def turn(heads: Array, position: int, rope: Rope) -> Array:
    """Each head's pairs (i, i + half) by their angles at a position."""
    angles = position * np.array(rope.frequencies)
    half = len(angles)
    low, high = heads[:, :half], heads[:, half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)
