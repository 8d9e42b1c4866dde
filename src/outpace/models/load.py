"""From a name or path to a model that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from outpace.cache import KVCache
from outpace.errors import ModelError, OptionError
from outpace.models import hub
from outpace.models.attention import padded_capacity
from outpace.models.config import ModelConfig
from outpace.models.decoder import Decoder
from outpace.models.threads import in_own_thread
from outpace.models.tokenizer import Tokenizer
from outpace.models.weights import check_tensors, open_checkpoint

Progress = Callable[[int, int], None]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with its tokenizer and identity.

    fingerprint: content key of config and weights; drafts trained for a model are bound to it.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    name: str
    fingerprint: str

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config

    @property
    def dtype(self) -> str:
        return next(name for name, dtype in DTYPES.items() if dtype == self.decoder.dtype)

    def kv_bytes(self, *, num_rows: int, num_tokens: int) -> int:
        """Bytes of a cache: 2 x layers x kv_heads x head_dim x tokens x bytes x rows."""
        config = self.config
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        return per_token * padded_capacity(num_tokens) * self.decoder.dtype.itemsize * num_rows

    def new_cache(self, *, num_rows: int, num_tokens: int) -> KVCache:
        """A cache for `num_rows` sequences of up to `num_tokens` tokens."""
        return self.decoder.new_cache(num_rows=num_rows, capacity=padded_capacity(num_tokens))


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    download_progress: Progress | None = None,
) -> LoadedModel:
    """Load an alias (fetched on first use), a GGUF file or a Hugging Face directory.

    dtype: "auto" takes bfloat16 where the device computes it natively, else float32; "float64"
        is the row-invariant mode of the tests.
    Raises ModelError or OptionError with what was given and what is possible.
    """
    torch_device = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, torch_device)
    path = hub.resolve(str(name_or_path), progress=download_progress)
    checkpoint = open_checkpoint(path)
    check_tensors(checkpoint)
    tokenizer = checkpoint.tokenizer()
    _check_tokenizer_size(tokenizer, checkpoint.config)
    decoder = in_own_thread(
        lambda: Decoder(
            checkpoint.config,
            checkpoint.load,
            dtype=torch_dtype,
            device=torch_device,
            num_logits=min(tokenizer.vocab_size, checkpoint.config.vocab_size),
        )
    )
    return LoadedModel(decoder, tokenizer, str(name_or_path), checkpoint.fingerprint())


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


def _check_tokenizer_size(tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Refuse a tokenizer that belongs to another model: rows without a token are never drawn.

    Padding of vocabularies is a few hundred rows; half of all rows is far beyond that.
    """
    num_tokens = len(tokenizer.vocab())
    if 2 * num_tokens < config.vocab_size:
        raise ModelError(
            f"{tokenizer.name}: the tokenizer knows {num_tokens} tokens, but the model has "
            f"{config.vocab_size} vocabulary rows; put the model's own tokenizer beside it"
        )


def has_native_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 run on instructions made for them."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    return device.type == "cuda" and torch.cuda.is_bf16_supported()
