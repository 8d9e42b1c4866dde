"""From a name or path to a model that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from outpace.cache import CacheRows
from outpace.errors import ModelError, OptionError
from outpace.models.attention import padded_capacity
from outpace.models.base import CausalModel
from outpace.models.config import ModelConfig
from outpace.models.decoder import Decoder
from outpace.models.hf.config import needs_adapter
from outpace.models.hub import names
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors
from outpace.models.threads import in_own_thread
from outpace.models.tokenizer import Tokenizer

Progress = Callable[[int, int], None]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


MODEL_IMPLS = ("auto", "outpace", "transformers")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and identity.

    fingerprint: content key of config and weights; drafts trained for a model are bound to it.
    model_impl: what computes it: "outpace" (our own decoder) or "transformers" (the adapter).
    generation_config: what its makers advise for sampling, as stored; see
        `Checkpoint.generation_config`.
    """

    decoder: CausalModel
    tokenizer: Tokenizer
    name: str
    fingerprint: str
    model_impl: str = "outpace"
    generation_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs_on(self) -> str:
        """What computes the model, in words."""
        return {"outpace": "outpace decoder", "transformers": "transformers adapter"}[
            self.model_impl
        ]

    @property
    def config(self) -> ModelConfig:
        """Shape of a model that runs on our own decoder."""
        assert isinstance(self.decoder, Decoder), f"{self.name} runs on the {self.runs_on}"
        return self.decoder.config

    @property
    def max_len(self) -> int:
        """Most tokens of a sequence."""
        return self.decoder.max_len

    @property
    def dtype(self) -> str:
        return next(name for name, dtype in DTYPES.items() if dtype == self.decoder.dtype)

    def kv_bytes(self, *, num_rows: int, num_tokens: int) -> int:
        """Bytes of a cache for `num_rows` sequences of up to `num_tokens` tokens."""
        return self.decoder.kv_bytes(num_rows=num_rows, capacity=padded_capacity(num_tokens))

    def new_cache(self, *, num_rows: int, num_tokens: int) -> CacheRows:
        """A cache for `num_rows` sequences of up to `num_tokens` tokens."""
        return self.decoder.new_cache(num_rows=num_rows, capacity=padded_capacity(num_tokens))


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    model_impl: str = "auto",
    download_progress: Progress | None = None,
) -> LoadedModel:
    """Load an alias (fetched on first use), a GGUF file or a Hugging Face directory.

    dtype: "auto" takes bfloat16 where the device computes it natively, else float32; "float64"
        is the row-invariant mode of the tests.
    model_impl: what computes the model. "outpace": our own decoder. "transformers": the adapter
        (`models/hf/adapter.py`), slower and for one sequence at a time. "auto": the decoder where
        it has the architecture, else, for a Hugging Face directory, the adapter.
    Raises ModelError or OptionError with what was given and what is possible.
    """
    torch_device = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, torch_device)
    if model_impl not in MODEL_IMPLS:
        raise OptionError(f"model_impl must be {', '.join(MODEL_IMPLS)}, got {model_impl!r}")
    path = names.resolve(str(name_or_path), progress=download_progress)
    if model_impl == "transformers" or (model_impl == "auto" and needs_adapter(path)):
        from outpace.models.hf.adapter import load_hf_adapter

        return load_hf_adapter(path, torch_dtype, torch_device, name=str(name_or_path))
    checkpoint = open_checkpoint(path)
    check_tensors(checkpoint)
    tokenizer = checkpoint.tokenizer()
    check_tokenizer_size(tokenizer, checkpoint.config.vocab_size)
    decoder = in_own_thread(
        lambda: Decoder(
            checkpoint.config,
            checkpoint.load,
            dtype=torch_dtype,
            device=torch_device,
            num_logits=min(tokenizer.vocab_size, checkpoint.config.vocab_size),
        )
    )
    return LoadedModel(
        decoder,
        tokenizer,
        str(name_or_path),
        checkpoint.fingerprint(),
        generation_config=checkpoint.generation_config(),
    )


def resolve_device(device: str) -> torch.device:
    """A torch device from its name; "auto" takes a GPU where there is one.

    Raises OptionError for a device that is not there or that cannot compute.
    """
    if not isinstance(device, str | torch.device):
        raise OptionError(f"device must be a name such as 'auto', 'cpu' or 'cuda', got {device!r}")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        # Reading a value back tells a device that computes from one that only keeps shapes.
        torch.ones(1, device=found).sum().item()
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError(f"device {device!r} cannot be used here: {reason}") from error
    return found


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """A torch dtype from its name."""
    if dtype == "auto":
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float32
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise OptionError(f"dtype must be auto, {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[dtype]


def check_tokenizer_size(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer that belongs to another model: rows without a token are never drawn.

    Padding of vocabularies is a few hundred rows; half of all rows is far beyond that.
    """
    num_tokens = len(tokenizer.vocab())
    if 2 * num_tokens < vocab_size:
        raise ModelError(
            f"{tokenizer.name}: the tokenizer knows {num_tokens} tokens, but the model has "
            f"{vocab_size} vocabulary rows; put the model's own tokenizer beside it"
        )


def has_native_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 run on instructions made for them."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    return device.type == "cuda" and torch.cuda.is_bf16_supported()
