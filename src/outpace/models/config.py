"""What a decoder must know about a model: its shape and which of the known variations it uses.

A configuration is read by `hf_config` (config.json) or `gguf_config` (GGUF metadata), which refuse,
by name and before a weight is read, whatever the decoder does not compute: a model that loads is
computed as its authors meant it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from outpace.errors import ModelError

MAX_INTEGER = 2**31 - 1
MAX_LAYERS = 4096

Norm = Literal["rms", "layer"]
Block = Literal["pre", "sandwich", "parallel"]
Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions (RoFormer, 2104.09864, half-split layout), scaling already worked in.

    frequencies: radians per position of each pair of channels; the leading 2 * len(frequencies)
        channels of a head turn, the rest stay as they are.
    attention_factor: multiplies cosine and sine (yarn and longrope; 1.0 otherwise).
    """

    frequencies: tuple[float, ...]
    attention_factor: float = 1.0

    @property
    def dim(self) -> int:
        return 2 * len(self.frequencies)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How the attention of one layer sees positions.

    rope: rotary positions, or None where the layer has none.
    window: a token sees itself and the window - 1 tokens before it; None: all before it.
    """

    rope: Rope | None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder-only transformer. Names are those of `config.json` where it has them.

    architecture: Hugging Face's model_type.
    layers: one entry per layer.
    max_position_embeddings: most tokens of a sequence.
    norm: "rms" scales only; "layer" subtracts the mean first and has a bias.
    norm_offset: added to every norm weight (Gemma stores them minus one).
    block: "pre" norms the input of attention and MLP; "sandwich" (Gemma) also their outputs;
        "parallel" (GPT-NeoX) adds attention and MLP of the same input.
    gated_mlp: down(act(gate(x)) * up(x)) rather than down(act(up(x))).
    qkv_bias, o_bias, mlp_bias: these projections have biases.
    qk_norm: each head of q and k passes an RMS norm before it is rotated.
    learned_positions: a table of position embeddings is added to the token embeddings.
    attention_scale: multiplies q k^T. attention_softcap, final_softcap: c tanh(x / c) of the
        attention scores and of the logits, or None.
    embedding_scale: multiplies the token embeddings.
    name: how messages refer to the model.

    Raises ModelError naming the field for a value of the wrong type or without meaning.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    layers: tuple[LayerKind, ...]
    norm_eps: float
    tie_word_embeddings: bool
    attention_scale: float
    norm: Norm = "rms"
    norm_offset: float = 0.0
    block: Block = "pre"
    activation: Activation = "silu"
    gated_mlp: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    learned_positions: bool = False
    attention_softcap: float | None = None
    final_softcap: float | None = None
    embedding_scale: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        for field in _INTEGER_FIELDS:
            value = getattr(self, field)
            if not is_integer(value) or not 1 <= value <= MAX_INTEGER:
                refuse(self.name, f"{field} must be a positive whole number, got {value!r}")
        for field in ("norm_eps", "attention_scale", "embedding_scale"):
            object.__setattr__(self, field, positive(self.name, field, getattr(self, field)))
        for field in ("attention_softcap", "final_softcap"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, positive(self.name, field, getattr(self, field)))
        for field in _FLAGS:
            if not isinstance(getattr(self, field), bool):
                refuse(self.name, f"{field} must be true or false, got {getattr(self, field)!r}")
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                refuse(self.name, f"{field} must be one of {choices}, got {getattr(self, field)!r}")
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            refuse(
                self.name,
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})",
            )
        if not self.layers:
            refuse(self.name, "num_hidden_layers must be a positive whole number, got 0")
        for kind in set(self.layers):
            if kind.rope is not None and not 0 < kind.rope.dim <= self.head_dim:
                refuse(self.name, f"{kind.rope.dim} channels turn in heads of {self.head_dim}")
            if kind.window is not None and not 1 <= kind.window <= MAX_INTEGER:
                refuse(self.name, f"sliding_window must be positive, got {kind.window!r}")

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError with `hint` if it is absent, or if damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; {hint}") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: must hold a JSON object, found {type(values).__name__}")
    return values


_INTEGER_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_FLAGS = (
    "tie_word_embeddings",
    "gated_mlp",
    "qkv_bias",
    "o_bias",
    "mlp_bias",
    "qk_norm",
    "learned_positions",
)
_CHOICES = {"norm": get_args(Norm), "block": get_args(Block), "activation": get_args(Activation)}


def refuse(name: str, reason: str) -> NoReturn:
    raise ModelError(f"{name}: {reason}" if name else reason)


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def required(values: Mapping[str, Any], field: str, name: str, prefix: str = "") -> Any:
    if values.get(field) is None:
        refuse(name, f"{prefix}{field} is missing from the model's configuration")
    return values[field]


def integer(values: Mapping[str, Any], field: str, name: str, prefix: str = "") -> int:
    value: int = required(values, field, name, prefix)
    if not is_integer(value) or not 1 <= value <= MAX_INTEGER:
        refuse(name, f"{prefix}{field} must be a positive whole number, got {value!r}")
    return value


def num_layers(values: Mapping[str, Any], field: str, name: str, prefix: str = "") -> int:
    """The number of layers; bounded, because a layer costs memory before its weights are seen."""
    count = integer(values, field, name, prefix)
    if count > MAX_LAYERS:
        refuse(name, f"{prefix}{field} must be at most {MAX_LAYERS}, got {count}")
    return count


def head_size(stated: Any, hidden_size: int, num_heads: int, name: str) -> Any:
    """The head size as stated, or hidden_size / num_heads where it is not."""
    if stated is not None:
        return stated
    if hidden_size % num_heads:
        refuse(
            name,
            f"hidden_size ({hidden_size}) must be a multiple of num_attention_heads "
            f"({num_heads}) where head_dim is not given",
        )
    return hidden_size // num_heads


def positive(name: str, field: str, value: object) -> float:
    """The value as a float. Raises ModelError unless it is a positive finite number."""
    if not is_finite(value) or value <= 0:  # type: ignore[operator]
        refuse(name, f"{field} must be a positive finite number, got {value!r}")
    return float(value)  # type: ignore[arg-type]
