"""A tiny random model and its tokenizer, built in memory: fast enough to be run thousands of times.

In float64 the outcome of a comparison does not depend on how the work was split into passes, so
that tests may demand equality of tokens instead of closeness of logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Any

import tokenizers
import torch
from jaxtyping import Float
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from outpace.cache import KVCache
from outpace.models.attention import Segment
from outpace.models.chat import ChatTemplate
from outpace.models.config import LayerKind, ModelConfig, Rope
from outpace.models.decoder import Batch, Decoder
from outpace.models.load import DTYPES, LoadedModel
from outpace.models.rope import default_frequencies
from outpace.models.tensors import expected_shapes
from outpace.models.tokenizer import Tokenizer
from outpace.params import SamplingParams
from outpace.runner import Runner
from outpace.types import Sequence

END_ID, BEGIN_ID = 0, 1
END_TOKEN, BEGIN_TOKEN = "<|end|>", "<|begin|>"

_CHAT = (
    "{% for message in messages %}{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}"
)
# Bytes in order of usefulness: a vocabulary of 96 covers plain English and some of what UTF-8
# splits over several tokens (é, €, and the emoji of U+1F600).
_COMMON = (
    b"etaoinshrdlucmfwypvbgkjqxz .,\n'ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789?!:-\"()"
    b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
)


def tiny_tokenizer(vocab_size: int = 96, *, name: str = "tiny") -> Tokenizer:
    """One token per byte, for the first `vocab_size - 2` bytes of a fixed order, after the end
    token (id 0) and the begin token (id 1). Bytes without a token are dropped by `encode`."""
    order = list(dict.fromkeys([*_COMMON, *range(256)]))
    assert 2 < vocab_size <= len(order) + 2
    spelled = _byte_spelling()
    tokens = [END_TOKEN, BEGIN_TOKEN, *(spelled[byte] for byte in order[: vocab_size - 2])]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END_TOKEN, BEGIN_TOKEN])
    special = {"bos_token": BEGIN_TOKEN, "eos_token": END_TOKEN}
    return Tokenizer(
        backend,
        bos_id=BEGIN_ID,
        end_token_ids=[END_ID],
        chat=ChatTemplate(_CHAT, special),
        name=name,
    )


def _byte_spelling() -> dict[int, str]:
    """Byte -> the character that byte-level BPE writes for it (GPT-2's table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + index) for index, byte in enumerate(rest)
    }


def layer_kind(
    *,
    theta: float | None = 10000.0,
    rotary_dim: int = 8,
    window: int | None = None,
    attention_factor: float = 1.0,
) -> LayerKind:
    """How a layer sees positions: rotary ones of base theta (None: none), and its window."""
    if theta is None:
        return LayerKind(None, window)
    return LayerKind(Rope(default_frequencies(theta, rotary_dim), attention_factor), window)


def tiny_config(
    *,
    vocab_size: int = 96,
    num_layers: int = 2,
    max_len: int = 256,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    **changes: Any,
) -> ModelConfig:
    """The shape of a tiny model; `changes` are further fields of ModelConfig.

    `layers` among them (see `layer_kind`) takes the place of `num_layers`.
    """
    values: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "layers": (layer_kind(rotary_dim=head_dim),) * num_layers,
        "norm_eps": 1e-5,
        "attention_scale": head_dim**-0.5,
        "max_position_embeddings": max_len,
        "tie_word_embeddings": False,
        "name": "tiny",
    }
    return ModelConfig(**(values | changes))


def random_weights(
    config: ModelConfig, *, seed: int = 0, scale: float = 1.0
) -> dict[str, Float[Tensor, ...]]:
    """Seeded float64 weights by Hugging Face name.

    `scale` multiplies the logits (their standard deviation is about 2 at scale 1).
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("norm.weight"):
            value = 1.0 - config.norm_offset + 0.1 * value
        elif name.endswith(".bias"):
            value = 0.1 * value
        elif name == "lm_head.weight":
            value = value * (2.0 * scale / math.sqrt(shape[1]))
        elif name != "model.embed_tokens.weight":
            # Above 1/sqrt(fan_in), so that attention and MLP outweigh the newest token's own
            # embedding: greedy text would fall into a short cycle otherwise.
            value = value * (2.0 / math.sqrt(shape[1]))
        elif config.tie_word_embeddings:
            value = value * (2.0 * scale / math.sqrt(shape[1]))
        weights[name] = value
    return weights


def tiny_model(
    *,
    vocab_size: int = 96,
    seed: int = 0,
    dtype: str = "float64",
    num_layers: int = 2,
    max_len: int = 256,
    scale: float = 1.0,
    **changes: Any,
) -> LoadedModel:
    """A random Llama model with `tiny_tokenizer`. Equal arguments give equal models.

    `changes` are fields of ModelConfig, or num_heads, num_kv_heads.
    """
    config = tiny_config(vocab_size=vocab_size, num_layers=num_layers, max_len=max_len, **changes)
    weights = random_weights(config, seed=seed, scale=scale)
    tokenizer = tiny_tokenizer(min(vocab_size, 258))
    decoder = Decoder(
        config,
        weights.__getitem__,
        dtype=DTYPES[dtype],
        device="cpu",
        num_logits=tokenizer.vocab_size,
    )
    name = f"tiny-{vocab_size}-{seed}-{num_layers}-{scale}"
    return LoadedModel(decoder, tokenizer, name, fingerprint=name)


def new_runner(model: LoadedModel, *, num_rows: int = 1, num_tokens: int | None = None) -> Runner:
    """A runner with a cache of its own."""
    length = model.config.max_position_embeddings if num_tokens is None else num_tokens
    return Runner(model.decoder, model.new_cache(num_rows=num_rows, num_tokens=length))


def feed(
    decoder: Decoder,
    cache: KVCache,
    tokens: Mapping[int, List[int]],
    parents: Mapping[int, List[int]] | None = None,
    capture: List[int] = (),
) -> tuple[dict[int, Float[Tensor, "n vocab"]], dict[int, Float[Tensor, "n hidden"]]]:
    """One pass over `tokens` of each open cache row: logits after every token, by row, and the
    captured states of all of them.

    parents: of the rows whose tokens are trees (see `Segment`).
    """
    segments = []
    for row in sorted(tokens):
        start = cache.length(row)
        cache.append(row, tokens[row])
        tree = parents.get(row) if parents else None
        segments.append(
            Segment(row, start, len(tokens[row]), None if tree is None else tuple(tree))
        )
    token_ids = [token for row in sorted(tokens) for token in tokens[row]]
    batch = Batch(token_ids, range(len(token_ids)), segments)
    logits, hidden = decoder.forward(batch, cache, capture)
    counts = [segment.num_tokens for segment in segments]
    parts = torch.as_tensor(logits).split(counts)
    return dict(zip(sorted(tokens), parts, strict=True)), hidden


def new_sequence(tokens: List[int], seq_id: int = 0, **params: Any) -> Sequence:
    """A sequence whose prompt is `tokens`."""
    return Sequence(seq_id, list(tokens), len(tokens), SamplingParams(**params))


def fresh_logits(model: LoadedModel, tokens: List[int]) -> Float[Tensor, " vocab"]:
    """Logits after `tokens`, from one pass over an empty cache: what every other way of
    computing them must agree with."""
    runner = new_runner(model, num_tokens=len(tokens))
    seq = new_sequence(tokens)
    runner.open(seq)
    return runner.extend([seq]).logits[-1]


def greedy_tokens(model: LoadedModel, prompt: List[int], count: int) -> list[int]:
    """The `count` tokens that plain greedy decoding yields after `prompt`, ends ignored."""
    runner = new_runner(model, num_tokens=len(prompt) + count)
    seq = new_sequence(prompt)
    runner.open(seq)
    for _ in range(count):
        seq.tokens.append(int(runner.extend([seq]).logits[-1].argmax()))
    return seq.tokens[len(prompt) :]
