"""An EAGLE head in torch: the parts that training unrolls and drafting runs.

Parameters are called as the checkpoint's tensors, so that `state_dict` and file are one to one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from outpace.heads.config import EagleConfig


class RMSNorm(nn.Module):
    """w x / sqrt(mean(x^2) + eps), in the dtype of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows n"]:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class _Attention(nn.Module):
    def __init__(self, config: EagleConfig, input_size: int) -> None:
        super().__init__()
        dim, heads, kv_heads = (
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
        )
        self.q_proj = _linear(input_size, heads * dim)
        self.k_proj = _linear(input_size, kv_heads * dim)
        self.v_proj = _linear(input_size, kv_heads * dim)
        self.o_proj = _linear(heads * dim, config.hidden_size)


class GatedMLP(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class DecoderLayer(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        is_eagle3 = config.algorithm == "eagle3"
        if is_eagle3:
            self.input_layernorm = RMSNorm(size, eps)
            self.hidden_norm = RMSNorm(size, eps)
        self.self_attn = _Attention(config, 2 * size if is_eagle3 else size)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = GatedMLP(config)


class EagleModule(nn.Module):
    """The network of one head, in the order in which a column passes through it.

    A column goes `joined` -> `qkv` -> attention (the caller's, who turns queries and keys by the
    column's position) -> `output` -> `logits`; the column after it starts from `next_input`.

    "eagle3": queries, keys and values read the normed embedding beside the normed input, [2H].
    "eagle": `fc` joins embedding and input, and the layer has no norm before its attention, no norm
    before the output head, and no `fc` over features.
    """

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        size, eps = config.hidden_size, config.rms_norm_eps
        is_eagle3 = config.algorithm == "eagle3"
        self.fc = _linear(config.feature_size if is_eagle3 else 2 * size, size)
        self.layers = nn.ModuleList([DecoderLayer(config)])
        if config.norm_before_fc:
            self.input_norm = RMSNorm(config.feature_size, eps)
        if config.fc_norm:
            layers = config.feature_layers
            self.fc_norm = nn.ModuleList([RMSNorm(config.target_hidden_size, eps) for _ in layers])
        if is_eagle3:
            self.norm = RMSNorm(size, eps)
        self.lm_head = _linear(size, config.draft_vocab_size)

    @property
    def layer(self) -> DecoderLayer:
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer

    def fuse(self, features: Float[Tensor, "n F"]) -> Float[Tensor, "n H"]:
        """What columns start from: captured layers side by side, normed as the flags say, through
        `fc`. Of "eagle" the features are the target's final norm of its last layer, and stay."""
        if self.config.algorithm != "eagle3":
            return features
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = torch.split(features, self.config.target_hidden_size, dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            features = torch.cat(normed, dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def joined(
        self, x: Float[Tensor, "n H"], embeddings: Float[Tensor, "n H"]
    ) -> tuple[Float[Tensor, "n H"], Float[Tensor, "n I"]]:
        """(residual, what `qkv` reads) of columns that start from `x` with these tokens."""
        if self.config.algorithm != "eagle3":
            fused: Tensor = self.fc(torch.cat([embeddings, x], dim=-1))
            return fused, fused
        layer = self.layer
        normed = layer.hidden_norm(x)
        residual = normed if self.config.norm_before_residual else x
        return residual, torch.cat([layer.input_layernorm(embeddings), normed], dim=-1)

    def qkv(
        self, joined: Float[Tensor, "n I"]
    ) -> tuple[
        Float[Tensor, "n heads d"], Float[Tensor, "n kv_heads d"], Float[Tensor, "n kv_heads d"]
    ]:
        """Queries, keys and values, before they are turned."""
        attention, dim = self.layer.self_attn, self.config.head_dim
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        q, k, v = (projection(joined).unflatten(-1, (-1, dim)) for projection in projections)
        return q, k, v

    def output(
        self, residual: Float[Tensor, "n H"], attended: Float[Tensor, "n C"]
    ) -> Float[Tensor, "n H"]:
        """The layer's output. attended: weighted values, all heads side by side."""
        layer = self.layer
        x = residual + layer.self_attn.o_proj(attended)
        output: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return output

    def normed(self, output: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """What the output head reads."""
        return self.norm(output) if self.config.algorithm == "eagle3" else output

    def logits(self, output: Float[Tensor, "n H"]) -> Float[Tensor, "n Vd"]:
        """Logits over the draft vocabulary."""
        logits: Tensor = self.lm_head(self.normed(output))
        return logits

    def next_input(self, output: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """What the column after this one starts from."""
        return self.normed(output) if self.config.norm_output else output

    def forward(
        self,
        x: Float[Tensor, "n H"],
        embeddings: Float[Tensor, "n H"],
        attend: Callable[[Tensor, Tensor, Tensor], Float[Tensor, "n C"]],
    ) -> Float[Tensor, "n H"]:
        """The outputs of new columns. attend: (queries, keys, values) of `qkv` to weighted values,
        all heads side by side; turns them, keeps keys and values, knows who sees whom."""
        residual, joined = self.joined(x, embeddings)
        return self.output(residual, attend(*self.qkv(joined)))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)
