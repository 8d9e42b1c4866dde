"""A small Llama in torch that can be trained: the network of a draft model.

Parameters are called as Hugging Face's Llama calls them, so that `state_dict` and file are one to
one. The models of `outpace.models` only infer; they repack their weights.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from outpace.heads.eagle import RMSNorm
from outpace.models.rotation import Rotation, rotate

if TYPE_CHECKING:
    from outpace.models.config import ModelConfig, Rope


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size, dim = config.hidden_size, config.head_dim
        self.head_dim = dim
        self.group = config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(size, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(size, config.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(size, config.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, size, bias=False)

    def forward(
        self,
        x: Float[Tensor, "N H"],
        rotation: tuple[Tensor, Tensor],
        lengths: List[int],
    ) -> Float[Tensor, "N H"]:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in projections)
        q, k = rotate(q, *rotation), rotate(k, *rotation)
        k, v = (each.repeat_interleave(self.group, dim=1) for each in (k, v))
        parts = zip(
            *(each.transpose(0, 1).split(lengths, dim=1) for each in (q, k, v)), strict=True
        )
        attended = [
            F.scaled_dot_product_attention(query, key, value, is_causal=True)
            for query, key, value in parts
        ]
        out: Tensor = self.o_proj(torch.cat(attended, dim=1).transpose(0, 1).flatten(1))
        return out


class _MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Float[Tensor, "N H"]) -> Float[Tensor, "N H"]:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = _MLP(config)

    def forward(
        self, x: Float[Tensor, "N H"], rotation: tuple[Tensor, Tensor], lengths: List[int]
    ) -> Float[Tensor, "N H"]:
        x = x + self.self_attn(self.input_layernorm(x), rotation, lengths)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Body(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([_Layer(config) for _ in config.layers])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class LlamaNetwork(nn.Module):
    """A Llama whose output head is its embedding.

    config: plain Llama with `tie_word_embeddings` and one rotation for all layers.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.tie_word_embeddings
        self.config = config
        self.model = _Body(config)

    @property
    def embedding(self) -> Float[Tensor, "V H"]:
        return self.model.embed_tokens.weight

    def forward(self, token_ids: Int[Tensor, " N"], starts: List[int]) -> Float[Tensor, "N H"]:
        """What the output head reads, for every token of whole sequences.

        starts: as in `TrainingBatch`.
        """
        lengths = [end - start for start, end in pairwise(starts)]
        x = self.model.embed_tokens(token_ids)
        rotation = Rotation(self._rope, self.config.head_dim, x.dtype, x.device)
        rotation.reach(max(lengths))
        position = torch.cat([torch.arange(length) for length in lengths]).to(x.device)
        turned = rotation(position)
        for layer in self.model.layers:
            x = layer(x, turned, lengths)
        out: Tensor = self.model.norm(x)
        return out

    @property
    def _rope(self) -> Rope:
        rope = self.config.layers[0].rope
        assert rope is not None
        return rope
