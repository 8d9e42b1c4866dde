"""The decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from outpace.cache import KVCache
from outpace.models.attention import AttentionPlan, Segment
from outpace.models.config import ModelConfig
from outpace.models.linear import Linear, make_linear, min_rows


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one pass, all sequences one after the other, ordered by cache row.

    token_ids, positions, slots: [N]; logit_rows: [R] indices into N whose logits are wanted.
    """

    token_ids: Int[Tensor, " n"]
    positions: Int[Tensor, " n"]
    slots: Int[Tensor, " n"]
    logit_rows: Int[Tensor, " r"]
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; q/k/v and gate/up are fused into one product each."""

    input_norm: Float[Tensor, " hidden"]
    qkv: Linear
    o: Linear
    post_attention_norm: Float[Tensor, " hidden"]
    gate_up: Linear
    down: Linear


class Decoder:
    """A Llama-family model on one device.

    `load(name)` returns the tensor of a Hugging Face name; weights are read once, converted to
    `dtype` and repacked. `forward` mutates only the cache passed to it, which must come from
    `new_cache`: rotation tables reach as far as the largest cache made so far.
    """

    def __init__(
        self,
        config: ModelConfig,
        load: Callable[[str], Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        num_logits: int | None = None,
        on_layer: Callable[[int, int], None] | None = None,
    ) -> None:
        """num_logits: how many leading vocabulary rows are real tokens (None: all); rows past
        them are padding and get no logit. on_layer(done, total) reports loading progress."""
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        self._min_rows = min_rows(dtype, self.device)
        self.num_logits = config.vocab_size if num_logits is None else num_logits

        def weight(name: str) -> Tensor:
            return load(name).to(device=self.device, dtype=dtype)

        self._embedding = weight("model.embed_tokens.weight")
        self._layers = []
        for index in range(config.num_hidden_layers):
            self._layers.append(_load_layer(config, weight, index))
            if on_layer is not None:
                on_layer(index + 1, config.num_hidden_layers)
        self._norm = weight("model.norm.weight")
        tied = config.tie_word_embeddings
        self._head = make_linear(self._embedding if tied else weight("lm_head.weight"))
        self._growing = threading.Lock()
        self._cos, self._sin = _rope_tables(config, dtype, self.device, num_positions=0)

    def new_cache(self, *, num_rows: int, capacity: int) -> KVCache:
        """A cache of this model's shape, in its dtype."""
        config = self.config
        self._reach(min(capacity, config.max_position_embeddings))
        return KVCache(
            num_layers=config.num_hidden_layers,
            num_rows=num_rows,
            capacity=capacity,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    def _reach(self, num_positions: int) -> None:
        """Make the rotation tables that long. A model may claim any number of positions; only
        those that a cache can hold are worth memory."""
        # Caches of one model may be made in several threads; the longer tables must stay.
        with self._growing:
            if num_positions > len(self._cos):
                tables = _rope_tables(self.config, self.dtype, self.device, num_positions)
                self._cos, self._sin = tables

    @torch.inference_mode()
    def forward(
        self, batch: Batch, cache: KVCache, capture: Sequence[int] = ()
    ) -> tuple[Float[Tensor, "r vocab"], dict[int, Tensor]]:
        """One pass: writes keys and values of every token, returns logits of the rows asked for.

        capture: layers whose output (residual stream, before any norm, [N, hidden]) is returned
        as well; 0 is the embedding, i the output of the i-th layer.
        Logits are float32 (float64 for a float64 model), [R, num_logits].
        """
        plan = AttentionPlan(batch.segments, self.config.num_attention_heads, cache, self.dtype)
        rope = (self._cos[batch.positions], self._sin[batch.positions])
        x = F.embedding(batch.token_ids, self._embedding)
        num_tokens = x.shape[0]
        if num_tokens < self._min_rows:
            # Doubled once here, a lone token need not be doubled by every product.
            x = x.repeat(self._min_rows, 1)
        hidden = {0: x[:num_tokens]} if 0 in capture else {}
        for index, layer in enumerate(self._layers):
            x = self._attention(layer, index, x, rope, plan, batch.slots, cache)
            x = self._mlp(layer, x)
            if index + 1 in capture:
                hidden[index + 1] = x[:num_tokens]
        x = self._rms_norm(x.index_select(0, batch.logit_rows), self._norm)
        logits = self._head(x)[:, : self.num_logits]
        return logits.to(torch.float64 if self.dtype == torch.float64 else torch.float32), hidden

    def _attention(
        self,
        layer: _Layer,
        index: int,
        x: Float[Tensor, "n hidden"],
        rope: tuple[Tensor, " Tensor"],
        plan: AttentionPlan,
        slots: Int[Tensor, " tokens"],
        cache: KVCache,
    ) -> Float[Tensor, "n hidden"]:
        config = self.config
        num_q, num_kv = config.num_attention_heads, config.num_key_value_heads
        qkv = layer.qkv(self._rms_norm(x, layer.input_norm))
        qkv = qkv.view(x.shape[0], num_q + 2 * num_kv, config.head_dim)
        qk = _rotate(qkv[:, : num_q + num_kv], *rope)
        num_rows, num_tokens = x.shape[0], slots.shape[0]
        cache.write(index, slots, qk[:num_tokens, num_q:], qkv[:num_tokens, num_q + num_kv :])
        attended = plan(index, qk[:num_tokens, :num_q])
        if num_rows > num_tokens:
            attended = attended.repeat(num_rows, 1)
        return layer.o(attended, residual=x)

    def _mlp(self, layer: _Layer, x: Float[Tensor, "n hidden"]) -> Float[Tensor, "n hidden"]:
        gate, up = layer.gate_up(self._rms_norm(x, layer.post_attention_norm)).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up), residual=x)

    def _rms_norm(
        self, x: Float[Tensor, "n hidden"], weight: Float[Tensor, " hidden"]
    ) -> Float[Tensor, "n hidden"]:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def _load_layer(config: ModelConfig, weight: Callable[[str], Tensor], index: int) -> _Layer:
    prefix = f"model.layers.{index}."

    def fused(names: Sequence[str], has_bias: bool) -> Linear:
        matrix = torch.cat([weight(f"{prefix}{name}.weight") for name in names])
        bias = torch.cat([weight(f"{prefix}{name}.bias") for name in names]) if has_bias else None
        return make_linear(matrix, bias)

    attention = [f"self_attn.{letter}_proj" for letter in "qkv"]
    return _Layer(
        input_norm=weight(prefix + "input_layernorm.weight"),
        qkv=fused(attention, config.attention_bias),
        o=fused(["self_attn.o_proj"], config.attention_bias),
        post_attention_norm=weight(prefix + "post_attention_layernorm.weight"),
        gate_up=fused(["mlp.gate_proj", "mlp.up_proj"], config.mlp_bias),
        down=fused(["mlp.down_proj"], config.mlp_bias),
    )


def _rope_tables(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, num_positions: int
) -> tuple[Float[Tensor, "p 1 dim"], Float[Tensor, "p 1 half"]]:
    """cos (both halves) and sin (one half) of the first positions' rotation angles.

    Kept in float32 even for half-precision models: angles at long positions need the digits.
    """
    table_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inverse_frequency = 1.0 / config.rope_theta**exponent
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequency)
    cos = angles.cos().repeat(1, 2)[:, None].to(device, table_dtype)
    return cos, angles.sin()[:, None].to(device, table_dtype)


def _rotate(
    x: Float[Tensor, "n heads dim"], cos: Float[Tensor, "#n 1 dim"], sin: Float[Tensor, "#n 1 half"]
) -> Float[Tensor, "n heads dim"]:
    """Rotate pairs (x_i, x_{i + dim/2}) by their angles (RoFormer, half-split layout)."""
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin, value=-1)
    out[..., half:].addcmul_(x[..., :half], sin)
    return out.to(x.dtype)
