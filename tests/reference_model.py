"""A transformer written as its papers say it, one token at a time, in float64.

Nothing here is fast, cached, fused or batched: tokens see the tokens on their path, found by
following parents, and every number is computed where it is needed. `Decoder` must agree with it in
every way of splitting the work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.models.config import ModelConfig, Rope

Weights = Mapping[str, Tensor]


def reference_forward(
    config: ModelConfig,
    weights: Weights,
    token_ids: Sequence[int],
    parents: Sequence[int] | None = None,
) -> tuple[Float[Tensor, "n vocab"], list[Float[Tensor, "n hidden"]]]:
    """Logits after every token, and the residual stream after the embedding and each layer.

    parents: index of the token that each token follows, -1 for none; None: the one before it.
    """
    parents = range(-1, len(token_ids) - 1) if parents is None else parents
    paths: list[list[int]] = []
    for index, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), index])
    x = torch.stack(
        [_embedded(config, weights, t, len(p) - 1) for t, p in zip(token_ids, paths, strict=True)]
    )
    states = [x]
    for layer in range(config.num_hidden_layers):
        x = _layer(config, _within(weights, f"model.layers.{layer}."), layer, x, paths)
        states.append(x)
    x = _norm(config, weights, "model.norm", x)
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    logits = x @ weights[f"{head}.weight"].double().T
    if config.final_softcap is not None:
        logits = config.final_softcap * torch.tanh(logits / config.final_softcap)
    return logits, states


def _embedded(config: ModelConfig, weights: Weights, token_id: int, position: int) -> Tensor:
    x = weights["model.embed_tokens.weight"][token_id].double() * config.embedding_scale
    if config.learned_positions:
        x = x + weights["model.embed_positions.weight"][position].double()
    return x


def _layer(
    config: ModelConfig, weights: Weights, layer: int, x: Tensor, paths: list[list[int]]
) -> Tensor:
    normed = _norm(config, weights, "input_layernorm", x)
    attended = _attention(config, weights, layer, normed, paths)
    if config.block == "parallel":
        normed = _norm(config, weights, "post_attention_layernorm", x)
        return x + attended + _mlp(config, weights, normed)
    if config.block == "pre":
        x = x + attended
        return x + _mlp(config, weights, _norm(config, weights, "post_attention_layernorm", x))
    x = x + _norm(config, weights, "post_attention_layernorm", attended)
    inner = _mlp(config, weights, _norm(config, weights, "pre_feedforward_layernorm", x))
    return x + _norm(config, weights, "post_feedforward_layernorm", inner)


def _attention(
    config: ModelConfig, weights: Weights, layer: int, x: Tensor, paths: list[list[int]]
) -> Tensor:
    kind = config.layers[layer]
    q, k, v = (
        _projected(weights, f"self_attn.{letter}_proj", x, config.qkv_bias).unflatten(
            -1, (-1, config.head_dim)
        )
        for letter in "qkv"
    )
    if config.qk_norm:
        q = _rms(q, config.norm_eps) * (weights["self_attn.q_norm.weight"] + config.norm_offset)
        k = _rms(k, config.norm_eps) * (weights["self_attn.k_norm.weight"] + config.norm_offset)
    if kind.rope is not None:
        q, k = (
            torch.stack([_turned(h, len(p) - 1, kind.rope) for h, p in zip(t, paths, strict=True)])
            for t in (q, k)
        )
    shared = config.num_attention_heads // config.num_key_value_heads
    outputs = []
    for token, path in enumerate(paths):
        # Positions along a path are consecutive: the window is its last so many tokens.
        visible = path if kind.window is None else path[-kind.window :]
        heads = []
        for head in range(config.num_attention_heads):
            keys, values = (t[visible, head // shared] for t in (k, v))
            scores = keys @ q[token, head] * config.attention_scale
            if config.attention_softcap is not None:
                cap = config.attention_softcap
                scores = cap * torch.tanh(scores / cap)
            shares = torch.exp(scores - scores.max())
            heads.append(shares @ values / shares.sum())
        outputs.append(torch.cat(heads))
    return _projected(weights, "self_attn.o_proj", torch.stack(outputs), config.o_bias)


def _turned(heads: Tensor, position: int, rope: Rope) -> Tensor:
    """Channel i and channel i + half are one complex number, turned by its frequency's angle.

    Angles are float32, as in every implementation of the families: their rounding is part of what
    the models are.
    """
    half = len(rope.frequencies)
    angles = torch.tensor(rope.frequencies, dtype=torch.float32) * position
    turn = torch.complex(angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor)
    turned = torch.complex(heads[:, :half], heads[:, half : 2 * half]) * turn
    return torch.cat([turned.real, turned.imag, heads[:, 2 * half :]], dim=-1)


def _mlp(config: ModelConfig, weights: Weights, x: Tensor) -> Tensor:
    up = _projected(weights, "mlp.up_proj", x, config.mlp_bias)
    if config.gated_mlp:
        gate = _projected(weights, "mlp.gate_proj", x, config.mlp_bias)
        inner = _activated(config, gate) * up
    else:
        inner = _activated(config, up)
    return _projected(weights, "mlp.down_proj", inner, config.mlp_bias)


def _activated(config: ModelConfig, x: Tensor) -> Tensor:
    if config.activation == "silu":
        return x / (1 + torch.exp(-x))
    if config.activation == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _norm(config: ModelConfig, weights: Weights, name: str, x: Tensor) -> Tensor:
    weight = weights[f"{name}.weight"].double() + config.norm_offset
    if config.norm == "rms":
        return _rms(x, config.norm_eps) * weight
    centred = x - x.mean(-1, keepdim=True)
    return _rms(centred, config.norm_eps) * weight + weights[f"{name}.bias"].double()


def _rms(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps)


def _projected(weights: Weights, name: str, x: Tensor, has_bias: bool) -> Tensor:
    y = x @ weights[f"{name}.weight"].double().T
    return y + weights[f"{name}.bias"].double() if has_bias else y


def _within(weights: Weights, prefix: str) -> Weights:
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
