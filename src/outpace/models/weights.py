"""Checkpoints on disk, read by Hugging Face tensor names whatever their format.

A checkpoint is a GGUF file or a directory with `config.json` and safetensors. Opening one reads
headers only; `check_tensors` then compares every tensor with what the configuration implies, so
that loading can neither miss a weight nor ignore one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.errors import ModelError
from outpace.models import shards
from outpace.models.config import ModelConfig, read_json
from outpace.models.gguf import DEQUANTISERS, GGUFFile

if TYPE_CHECKING:
    import torch

    from outpace.models.tokenizer import Tokenizer

_GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GGUF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.(\w+)\.(weight|bias)")
_SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_HARMLESS_EXTRA = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
_SAMPLE_BYTES = 256
_MAX_LISTED = 5


class Checkpoint(ABC):
    """Weights, configuration and tokenizer of one model. Read-only; tensors are loaded on demand.

    config: shape of the model. path: the file or directory. stored_dtype: the most common type
    of the projection weights as stored ("Q4_1", "float32", "bfloat16", ...).
    """

    config: ModelConfig
    path: Path

    @abstractmethod
    def names(self) -> set[str]:
        """Hugging Face names of all tensors; a tensor without one keeps its stored name."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without loading it."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """Type of a tensor as stored, without loading it."""

    @abstractmethod
    def load(self, name: str) -> torch.Tensor:
        """The tensor in Hugging Face's layout, owned by the caller.

        float32 from a GGUF file (dequantised), the stored dtype from safetensors.
        Raises ModelError for a name the checkpoint lacks.
        """

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that hold the weights."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; built on the first call, then kept."""

    @abstractmethod
    def _samples(self, name: str) -> Iterator[bytes]:
        """A few stored bytes from the beginning, middle and end of a tensor."""

    @property
    def stored_dtype(self) -> str:
        kinds = Counter(self.dtype(n) for n in sorted(self.names()) if n.endswith("_proj.weight"))
        return kinds.most_common(1)[0][0] if kinds else "none"

    def fingerprint(self) -> str:
        """Content key of the model (hex SHA-256), in milliseconds rather than a full hash.

        Covers the configuration except its name, and of every tensor its name, type, shape and
        sampled bytes. Equal files have equal keys and retrained or requantised weights other
        ones; a change confined to bytes that are not sampled goes unseen, and the same weights
        stored in another format have another key.
        """
        config = asdict(self.config)
        del config["name"]
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        for name in sorted(self.names()):
            digest.update(f"\n{name} {self.dtype(name)} {self.shape(name)} ".encode())
            for sample in self._samples(name):
                digest.update(sample)
        return digest.hexdigest()


class GGUFCheckpoint(Checkpoint):
    """A GGUF file. Query and key projections are put back into Hugging Face's rotary layout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        num_parts = self._file.metadata.get("split.count", 1)
        if num_parts != 1:
            raise ModelError(
                f"{path}: is one part of a model split into {num_parts} files; join them first "
                "(llama-gguf-split --merge)"
            )
        shapes = {name: info.shape for name, info in self._file.tensors.items()}
        self.config = ModelConfig.from_gguf(self._file.metadata, shapes, str(path))
        self._stored_names = {_hf_name(name): name for name in shapes}

    def names(self) -> set[str]:
        return set(self._stored_names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._stored_name(name)].shape

    def dtype(self, name: str) -> str:
        return self._file.tensors[self._stored_name(name)].type_name

    def load(self, name: str) -> torch.Tensor:
        tensor = self._file.load(self._stored_name(name))
        if ".self_attn.q_proj." in name:
            return _half_split(tensor, self.config.num_attention_heads, name, self.path)
        if ".self_attn.k_proj." in name:
            return _half_split(tensor, self.config.num_key_value_heads, name, self.path)
        return tensor

    def files(self) -> list[Path]:
        return [self.path]

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from outpace.models.tokenizer import Tokenizer

        return Tokenizer.from_gguf(self._file.metadata, str(self.path))

    def _samples(self, name: str) -> Iterator[bytes]:
        raw = self._file.raw(self._stored_name(name))
        for start in (0, len(raw) // 2, max(len(raw) - _SAMPLE_BYTES, 0)):
            yield raw[start : start + _SAMPLE_BYTES].tobytes()

    def _stored_name(self, name: str) -> str:
        if name not in self._stored_names:
            raise ModelError(f"{self.path}: holds no tensor {name}")
        return self._stored_names[name]


class HFCheckpoint(Checkpoint):
    """A Hugging Face directory: config.json and one or several safetensors files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if (path / "adapter_config.json").exists():
            raise ModelError(
                f"{path}: this directory is a LoRA adapter (it has adapter_config.json); adapters "
                "are not supported: merge it into its base model and give the merged model"
            )
        values = read_json(path / "config.json", "a model directory must have config.json")
        self.config = ModelConfig.from_hf(values, str(path))
        self._readers = shards.open_all(path)
        self._home = shards.tensor_homes(path, self._readers)

    def names(self) -> set[str]:
        return set(self._home)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._reader(name).get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        stored: str = self._reader(name).get_slice(name).get_dtype()
        return _SAFETENSORS_DTYPES.get(stored, stored)

    def load(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._reader(name).get_tensor(name)
        return tensor

    def files(self) -> list[Path]:
        return [self.path / file for file in self._readers]

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from outpace.models.tokenizer import Tokenizer

        return Tokenizer.from_directory(self.path)

    def _samples(self, name: str) -> Iterator[bytes]:
        import torch

        shape = self.shape(name)
        if not shape or 0 in shape:
            return
        rows = self._reader(name).get_slice(name)
        for start in sorted({0, shape[0] // 2, shape[0] - 1}):
            values = rows[start : start + 1].contiguous().view(torch.uint8).flatten()
            yield bytes(values[:_SAMPLE_BYTES].tolist())

    def _reader(self, name: str) -> Any:
        if name not in self._home:
            raise ModelError(f"{self.path}: holds no tensor {name}")
        return self._readers[self._home[name]]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory, reading configuration and tensor table.

    Raises ModelError for a path that is neither, a damaged file, or a model that this engine
    does not run.
    """
    path = Path(path)
    if path.is_dir():
        return HFCheckpoint(path)
    if not path.exists():
        raise ModelError(f"{path}: no such file or directory")
    if path.suffix in (".bin", ".pt", ".pth"):
        raise ModelError(f"{path}: {shards.CONVERT_BIN}")
    if path.suffix == ".safetensors":
        raise ModelError(f"{path}: give the directory that holds it with its config.json instead")
    return GGUFCheckpoint(path)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name and shape of every tensor a model of this configuration has."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query_dim = config.num_attention_heads * config.head_dim
    kv_dim = config.num_key_value_heads * config.head_dim
    projections = {
        "self_attn.q_proj": (query_dim, hidden, config.attention_bias),
        "self_attn.k_proj": (kv_dim, hidden, config.attention_bias),
        "self_attn.v_proj": (kv_dim, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, query_dim, config.attention_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        for name, (rows, columns, has_bias) in projections.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


def num_parameters(config: ModelConfig) -> int:
    """How many weights a model of this configuration has; tied embeddings count once."""
    return sum(math.prod(shape) for shape in expected_shapes(config).values())


def check_tensors(checkpoint: Checkpoint) -> None:
    """Compare every tensor with the configuration, by name, shape and readable type.

    Raises ModelError naming the tensor with expected and found shape, missing tensors, or
    tensors that the decoder would not use (stored rotary frequencies excepted).
    """
    names = checkpoint.names()
    # A tiny file may claim any number of layers; do not list the tensors of a million of them.
    if checkpoint.config.num_hidden_layers > max(len(names), 1):
        raise ModelError(
            f"{checkpoint.path}: the configuration has {checkpoint.config.num_hidden_layers} "
            f"layers, but only {len(names)} tensors are stored"
        )
    expected = expected_shapes(checkpoint.config)
    missing = sorted(set(expected) - names, key=_layer_order)
    if missing:
        raise ModelError(f"{checkpoint.path}: missing tensors: {_listed(missing)}")
    for name, shape in expected.items():
        if checkpoint.shape(name) != shape:
            raise ModelError(
                f"{checkpoint.path}: tensor {name} must have shape {shape} by the configuration, "
                f"found {checkpoint.shape(name)}"
            )
        _check_dtype(checkpoint, name)
    extra = [name for name in names - set(expected) if not _HARMLESS_EXTRA.fullmatch(name)]
    if checkpoint.config.tie_word_embeddings and "lm_head.weight" in extra:
        _check_tied_head(checkpoint)
        extra.remove("lm_head.weight")
    if extra:
        raise ModelError(
            f"{checkpoint.path}: tensors that this model does not use: "
            f"{_listed(sorted(extra, key=_layer_order))}"
        )


def _hf_name(stored: str) -> str:
    stem, _, kind = stored.rpartition(".")
    if stem in _GGUF_NAMES:
        return f"{_GGUF_NAMES[stem]}.{kind}"
    match = _GGUF_LAYER.fullmatch(stored)
    if match and match[2] in _GGUF_LAYER_NAMES:
        return f"model.layers.{int(match[1])}.{_GGUF_LAYER_NAMES[match[2]]}.{match[3]}"
    return stored


def _half_split(tensor: torch.Tensor, num_heads: int, name: str, path: Path) -> torch.Tensor:
    """Undo llama.cpp's row order [head, pair, half] for rotary: back to [head, half, pair]."""
    rows = tensor.shape[0]
    if rows % (2 * num_heads):
        raise ModelError(f"{path}: {name} has {rows} rows, which do not split into {num_heads}")
    pairs = tensor.reshape(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()


def _check_dtype(checkpoint: Checkpoint, name: str) -> None:
    dtype = checkpoint.dtype(name)
    readable = set(DEQUANTISERS) | set(_SAFETENSORS_DTYPES.values())
    if dtype not in readable:
        raise ModelError(
            f"{checkpoint.path}: tensor {name} is stored as {dtype}, which is not supported; "
            f"supported: {', '.join(sorted(readable))}"
        )


def _check_tied_head(checkpoint: Checkpoint) -> None:
    import torch

    head = checkpoint.load("lm_head.weight")
    if not torch.equal(head, checkpoint.load("model.embed_tokens.weight")):
        raise ModelError(
            f"{checkpoint.path}: tie_word_embeddings is true, but lm_head.weight differs from "
            "model.embed_tokens.weight"
        )


def _layer_order(name: str) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"\d{1,9}", name)], name


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
