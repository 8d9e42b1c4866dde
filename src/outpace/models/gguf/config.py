"""Reading the metadata of a GGUF file.

GGUF keeps the shape of a model in metadata and leaves the rest to llama.cpp, which knows it by the
architecture's name: `_FAMILIES` and the functions under it are that knowledge. What a file does not
say and the name does not decide is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from outpace.models.architectures import check_architecture
from outpace.models.config import (
    Activation,
    Block,
    LayerKind,
    ModelConfig,
    Norm,
    head_size,
    integer,
    is_integer,
    num_layers,
    positive,
    refuse,
    required,
)
from outpace.models.gguf.layouts import INTERLEAVED
from outpace.models.gguf.rope import ROPE_TENSORS, LoadTensor, RopeReader, shortest


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture's name says. model_type: Hugging Face's name of it."""

    model_type: str
    norm: Norm = "rms"
    block: Block = "pre"
    activation: Activation = "silu"
    gated_mlp: bool = True
    qk_norm: bool = False
    learned_positions: bool = False
    scaled_embeddings: bool = False


_FAMILIES = {
    "llama": _Family("llama"),
    "qwen2": _Family("qwen2"),
    "qwen3": _Family("qwen3", qk_norm=True),
    "smollm3": _Family("smollm3"),
    "gemma": _Family("gemma", activation="gelu_tanh", scaled_embeddings=True),
    "gemma2": _Family("gemma2", "rms", "sandwich", "gelu_tanh", scaled_embeddings=True),
    "gemma3": _Family(
        "gemma3_text", "rms", "sandwich", "gelu_tanh", qk_norm=True, scaled_embeddings=True
    ),
    "phi3": _Family("phi3"),
    "gpt2": _Family("gpt2", "layer", "pre", "gelu_tanh", gated_mlp=False, learned_positions=True),
    "gptneox": _Family("gpt_neox", "layer", "parallel", "gelu", gated_mlp=False),
    "stablelm": _Family("stablelm", "layer"),
}
SUPPORTED = tuple(_FAMILIES)

# Metadata that changes the computation, and the value that changes nothing.
_NEUTRAL: dict[str, Any] = {
    "attention.scale": 0.0,
    "attention.output_scale": 0.0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.temperature_scale": 0.0,
    "attention.temperature_length": 0,
    "attention.shared_kv_layers": 0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "expert_count": 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "use_parallel_residual": False,
    "attention.sliding_window_pattern": None,
    "rope.freq_base_swa": None,
    "rope.dimension_sections": None,
}
# Keys of _NEUTRAL that are read for an architecture. StableLM's flag is stored but means nothing:
# converters write true for want of one, and the model is parallel where a norm is absent.
_READ = {
    "gemma2": (
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "attention.sliding_window_pattern",
    ),
    "gemma3": (
        "final_logit_softcapping",
        "attention.sliding_window_pattern",
        "rope.freq_base_swa",
    ),
    "gptneox": ("use_parallel_residual",),
    "stablelm": ("use_parallel_residual",),
}
# Layers of the one model of each family whose queries are scaled by hidden_size / num_heads.
_WIDE_QUERY_LAYERS = {"gemma2": 46, "gemma3": 62}
_NO_ROPE_EVERY = {"smollm3": 4}
_WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6}


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    name: str = "",
    load: LoadTensor | None = None,
) -> ModelConfig:
    """Read the metadata of a GGUF file; `tensor_shapes` are row-major (outermost first).

    load: reads a one-dimensional tensor of the file. It is called for the factors of rotary
        frequencies, which converters store as tensors, and for nothing else.
    What GGUF leaves unsaid is read off the tensors: an absent `output.weight` means tied
    embeddings, a bias tensor means biases. Raises ModelError as `config_from_hf` does.
    """
    architecture = metadata.get("general.architecture")
    check_architecture(architecture, SUPPORTED, name)
    prefix = f"{architecture}."
    values = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    return _Reader(str(architecture), values, tensor_shapes, name, load).config()


class _Reader:
    """Reads the metadata of one file; `values` are those of its architecture, without prefix."""

    def __init__(
        self,
        architecture: str,
        values: Mapping[str, Any],
        tensor_shapes: Mapping[str, tuple[int, ...]],
        name: str,
        load: LoadTensor | None,
    ) -> None:
        self._architecture = architecture
        self._family = _FAMILIES[architecture]
        self._values = values
        self._shapes = tensor_shapes
        self._prefix = f"{architecture}."
        self._name = name
        self._load = load

    def config(self) -> ModelConfig:
        self._refuse_features()
        family, values = self._family, self._values
        embedding = self._shapes.get("token_embd.weight", ())
        if len(embedding) != 2:
            refuse(self._name, f"token_embd.weight must be a matrix, found shape {embedding}")
        hidden_size = integer(values, "embedding_length", self._name, self._prefix)
        num_heads = integer(values, "attention.head_count", self._name, self._prefix)
        head_dim = self._head_dim(hidden_size, num_heads)
        count = num_layers(values, "block_count", self._name, self._prefix)
        layers, max_len = self._layers(count, head_dim)
        return ModelConfig(
            architecture=family.model_type,
            vocab_size=embedding[0],
            hidden_size=hidden_size,
            intermediate_size=self._field("feed_forward_length"),
            num_attention_heads=num_heads,
            num_key_value_heads=values.get("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            max_position_embeddings=max_len,
            layers=layers,
            norm_eps=self._norm_eps(),
            tie_word_embeddings="output.weight" not in self._shapes,
            attention_scale=self._attention_scale(count, hidden_size, num_heads, head_dim),
            norm=family.norm,
            block=self._block(),
            activation=family.activation,
            gated_mlp=family.gated_mlp,
            qkv_bias=self._has("attn_q.bias") or self._has("attn_qkv.bias"),
            o_bias=self._has("attn_output.bias"),
            mlp_bias=self._has("ffn_up.bias"),
            qk_norm=family.qk_norm,
            learned_positions=family.learned_positions,
            attention_softcap=self._softcap("attn", 50.0),
            final_softcap=self._softcap("final", 30.0),
            embedding_scale=math.sqrt(hidden_size) if family.scaled_embeddings else 1.0,
            name=self._name,
        )

    def _refuse_features(self) -> None:
        read = _READ.get(self._architecture, ())
        for key, neutral in _NEUTRAL.items():
            if key not in read and self._values.get(key, neutral) != neutral:
                value = self._values[key]
                refuse(self._name, f"{self._prefix}{key} = {value!r} is not supported")
        if any(key.startswith("ssm.") for key in self._values):
            refuse(
                self._name,
                f"{self._prefix}ssm.* announces recurrent layers, which cannot be rolled back",
            )
        if self._architecture == "stablelm" and not self._has("ffn_norm.weight"):
            refuse(self._name, "StableLM with parallel attention and MLP is not supported")

    def _head_dim(self, hidden_size: int, num_heads: int) -> int:
        stated = self._values.get("attention.key_length")
        head_dim = head_size(stated, hidden_size, num_heads, self._name)
        least = 1 if self._family.learned_positions else 2
        if not is_integer(head_dim) or not least <= head_dim <= 4096 or head_dim % least:
            refuse(self._name, f"head_dim must be even for rotary embedding, got {head_dim!r}")
        for key in ("attention.value_length", "attention.key_length_swa"):
            if self._values.get(key, head_dim) != head_dim:
                self._refuse_value(key, f"must equal the head size {head_dim}")
        return int(head_dim)

    def _norm_eps(self) -> float:
        key = "layer_norm_rms_epsilon" if self._family.norm == "rms" else "layer_norm_epsilon"
        return positive(self._name, "norm_eps", shortest(self._field(f"attention.{key}")))

    def _block(self) -> Block:
        if self._architecture != "gptneox":
            return self._family.block
        parallel = self._field("use_parallel_residual")
        if not isinstance(parallel, bool):
            self._refuse_value("use_parallel_residual", "must be true or false")
        return "parallel" if parallel else "pre"

    def _attention_scale(self, count: int, hidden: int, num_heads: int, head_dim: int) -> float:
        if _WIDE_QUERY_LAYERS.get(self._architecture) == count:
            return 1.0 / math.sqrt(hidden // num_heads)
        return 1.0 / math.sqrt(head_dim)

    def _softcap(self, kind: str, default: float) -> float | None:
        """The cap of a file that may have one; llama.cpp gives Gemma 2 both where it is silent."""
        value = self._values.get(f"{kind}_logit_softcapping")
        if value is None and self._architecture == "gemma2":
            return default
        return None if value is None or value == 0 else value

    def _layers(self, count: int, head_dim: int) -> tuple[tuple[LayerKind, ...], int]:
        """How each layer sees positions, and the longest sequence for which that holds."""
        max_len = integer(self._values, "context_length", self._name, self._prefix)
        window = self._window()
        if self._family.learned_positions:
            self._refuse_rope()
            return (LayerKind(None),) * count, max_len
        ropes = RopeReader(self._values, self._shapes, self._prefix, self._name, self._load)
        rope, max_len = ropes.read(head_dim, max_len)
        if self._architecture in INTERLEAVED and rope.dim != head_dim:
            self._refuse_value("rope.dimension_count", f"must equal the head size {head_dim}")
        pattern = self._pattern(count, window)
        if window is not None and window >= max_len:
            window = None
        if pattern is not None:
            near = rope if self._architecture == "gemma2" else ropes.read_local(head_dim)
            kinds = {True: LayerKind(near, window), False: LayerKind(rope)}
            return tuple(kinds[sliding] for sliding in pattern), max_len
        without = _NO_ROPE_EVERY.get(self._architecture, count + 1)
        kinds = {True: LayerKind(rope, window), False: LayerKind(None, window)}
        return tuple(kinds[(layer + 1) % without != 0] for layer in range(count)), max_len

    def _window(self) -> int | None:
        values, architecture = self._values, self._architecture
        key = "attention.sliding_window"
        window = values.get(key, 0)
        if key not in values and architecture == "gemma2":
            window = 4096
        if key not in values and architecture == "phi3" and values.get("context_length") == 4096:
            window = 2047  # of the only Phi-3 with 4,096 positions; its first files do not say it
        if not is_integer(window) or window < 0:
            self._refuse_value(key, "must be a whole number")
        if window == 0:
            return None
        if architecture not in ("llama", "phi3", *_WINDOW_PERIOD):
            limit = values.get("context_length")
            if is_integer(limit) and window >= limit:
                return None
            self._refuse_value(key, "is not supported")
        return int(window)

    def _pattern(self, count: int, window: int | None) -> Sequence[bool] | None:
        """Which layers see a window only, for architectures that mix them."""
        if self._architecture not in _WINDOW_PERIOD or window is None:
            return None
        key = "attention.sliding_window_pattern"
        pattern = self._values.get(key, _WINDOW_PERIOD[self._architecture])
        flags = pattern if isinstance(pattern, list) else []
        if len(flags) == count and all(isinstance(flag, int) and flag in (0, 1) for flag in flags):
            return [bool(flag) for flag in flags]
        if not is_integer(pattern) or pattern < 1:
            self._refuse_value(key, f"must be a period or {count} flags")
        return [(layer + 1) % pattern != 0 for layer in range(count)]

    def _refuse_rope(self) -> None:
        for tensor in ROPE_TENSORS:
            if tensor in self._shapes:
                refuse(self._name, f"{tensor} has no meaning for {self._architecture!r}")

    def _has(self, tensor: str) -> bool:
        return f"blk.0.{tensor}" in self._shapes

    def _field(self, key: str) -> Any:
        return required(self._values, key, self._name, self._prefix)

    def _refuse_value(self, key: str, reason: str) -> NoReturn:
        refuse(self._name, f"{self._prefix}{key} ({self._values.get(key)!r}) {reason}")
