"""How large a draft model should be for what it may cost.

Decoding reads every weight once for each token, and memory is what it waits for: what a draft step
costs beside a target pass is about the ratio of the weights they read. A Llama with tied embeddings
reads, for each token,

    V h                          the embedding, as the output head (as the input, one row)
  + L (2 h d n + 2 h d k + 3 h m)  L layers: n query and k key heads of d channels, m MLP neurons
  + norms

numbers. With a vocabulary of 49,152 and h = 192, that is 9.4 M for the head and 0.44 M for a
layer: in small models the vocabulary is most of it, so the width h is what is chosen, and the depth
follows (one layer for every `CHANNELS_PER_LAYER`): layers are read one after the other, and more of
them make a step longer than its bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from outpace.errors import OptionError
from outpace.models.config import LayerKind, ModelConfig, Rope
from outpace.models.rope import default_frequencies
from outpace.models.tensors import num_parameters

CHANNELS_PER_LAYER = 48
WIDTH_STEP = 32
"""Widths are multiples of it: the block of packed formats, and of the native kernels."""
ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Shape of a small Llama. num_weights: read for a token. cost: of those the target reads."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_weights: int
    cost: float

    def described(self, vocab_size: int) -> str:
        """The arithmetic in one sentence."""
        return (
            f"{self.num_layers} layers of width {self.hidden_size}: {self.num_weights / 1e6:.2f} M "
            f"weights read for a token, {vocab_size * self.hidden_size / 1e6:.2f} M of them the "
            f"embedding of {vocab_size:,} tokens; {self.cost:.3f} of what the target reads"
        )


def weights_read(config: ModelConfig) -> int:
    """How many weights a decoding step reads: of an embedding that is no output head, one row."""
    total = num_parameters(config)
    if not config.tie_word_embeddings:
        total -= (config.vocab_size - 1) * config.hidden_size
    return total


def propose_size(target: ModelConfig, cost: float, vocab_size: int | None = None) -> ModelSize:
    """The draft model whose bytes per token come nearest to `cost` of the target's, weights being
    stored alike.

    vocab_size: rows of its embedding (None: the target's). Raises OptionError for a cost that is
    not between 0 and 1.
    """
    if not 0 < cost < 1:
        raise OptionError(
            f"a draft model's cost is a share of a target pass between 0 and 1, got {cost:g}"
        )
    widest = max(WIDTH_STEP, target.hidden_size // WIDTH_STEP * WIDTH_STEP)
    sizes = [
        size_of_width(target, width, vocab_size=vocab_size)
        for width in range(WIDTH_STEP, widest + 1, WIDTH_STEP)
    ]
    return min(sizes, key=lambda size: abs(math.log(size.cost / cost)))


def size_of_width(
    target: ModelConfig,
    hidden_size: int,
    *,
    num_layers: int | None = None,
    vocab_size: int | None = None,
) -> ModelSize:
    """The shape that goes with a width. Raises OptionError for a width that is no multiple of
    `WIDTH_STEP`."""
    if hidden_size < WIDTH_STEP or hidden_size % WIDTH_STEP:
        raise OptionError(f"a draft model's width is a multiple of {WIDTH_STEP}, got {hidden_size}")
    head_dim = 64 if hidden_size % 64 == 0 and hidden_size >= 512 else 32
    num_heads = hidden_size // head_dim
    group = target.num_attention_heads // target.num_key_value_heads
    shared_by = max(n for n in range(1, group + 1) if num_heads % n == 0)
    shape = {
        "hidden_size": hidden_size,
        "intermediate_size": math.ceil(8 * hidden_size / 3 / WIDTH_STEP) * WIDTH_STEP,
        "num_layers": num_layers or max(1, round(hidden_size / CHANNELS_PER_LAYER)),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads // shared_by,
        "head_dim": head_dim,
    }
    draft = _config(target, vocab_size=vocab_size or target.vocab_size, **shape)
    num_weights = weights_read(draft)
    return ModelSize(**shape, num_weights=num_weights, cost=num_weights / weights_read(target))


def draft_config(target: ModelConfig, size: ModelSize, vocab_size: int) -> ModelConfig:
    """A Llama of that size with the target's positions."""
    return _config(
        target,
        vocab_size=vocab_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_layers=size.num_layers,
        num_attention_heads=size.num_attention_heads,
        num_key_value_heads=size.num_key_value_heads,
        head_dim=size.head_dim,
    )


def _config(
    target: ModelConfig, *, vocab_size: int, num_layers: int, head_dim: int, **shape: Any
) -> ModelConfig:
    rope = Rope(default_frequencies(ROPE_THETA, head_dim))
    return ModelConfig(
        architecture="llama",
        vocab_size=vocab_size,
        head_dim=head_dim,
        layers=(LayerKind(rope),) * num_layers,
        max_position_embeddings=target.max_position_embeddings,
        norm_eps=1e-5,
        tie_word_embeddings=True,
        attention_scale=head_dim**-0.5,
        name="draft model",
        **shape,
    )
