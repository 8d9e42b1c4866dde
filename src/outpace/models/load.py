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
from outpace.models.checkpoint import Checkpoint
from outpace.models.config import ModelConfig
from outpace.models.decoder import Decoder
from outpace.models.hf.config import needs_adapter
from outpace.models.hub import names
from outpace.models.native.decoder import NativeDecoder
from outpace.models.native.formats import PACKED_DTYPES, NativeOptions
from outpace.models.native.load import load_native
from outpace.models.native.support import why_not
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors
from outpace.models.threads import check_threads, in_own_thread
from outpace.models.tokenizer import Tokenizer

Progress = Callable[[int, int], None]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


MODEL_IMPLS = ("auto", "native", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and identity.

    fingerprint: content key of config and weights; drafts trained for a model are bound to it.
    model_impl: what computes it: "native" (the native step), "torch" (our decoder in torch) or
        "transformers" (the adapter).
    generation_config: what its makers advise for sampling, as stored; see
        `Checkpoint.generation_config`.
    """

    decoder: CausalModel
    tokenizer: Tokenizer
    name: str
    fingerprint: str
    model_impl: str = "torch"
    generation_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs_on(self) -> str:
        """What computes the model, in words."""
        if isinstance(self.decoder, NativeDecoder):
            return f"native step ({self.decoder.description})"
        return {"torch": "torch decoder", "transformers": "transformers adapter"}[self.model_impl]

    @property
    def config(self) -> ModelConfig:
        """Shape of a model that our own code runs."""
        decoder = self.decoder
        assert isinstance(decoder, Decoder | NativeDecoder), f"{self.name}: {self.runs_on}"
        return decoder.config

    @property
    def max_len(self) -> int:
        """Most tokens of a sequence."""
        return self.decoder.max_len

    @property
    def dtype(self) -> str:
        """What the weights are held in, as the option is spelled."""
        return self.decoder.dtype_name

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
    kv_cache_dtype: str = "auto",
    activations: str = "auto",
    threads: int | None = None,
    download_progress: Progress | None = None,
    packing_progress: Progress | None = None,
) -> LoadedModel:
    """Load an alias (fetched on first use), a GGUF file or a Hugging Face directory.

    dtype: what the weights are held in. "auto": on the native step a GGUF file's own format where
        that is Q4_0, Q4_1 or Q8_0, else bfloat16; in torch bfloat16 where the device computes it
        natively, else float32. "q4_0", "q4_1", "q8_0": that the file is stored so. "float64" is the
        row-invariant mode of the torch decoder.
    model_impl: what computes the model. "native": the native step, on CPUs. "torch": our decoder in
        torch. "transformers": the adapter (`models/hf/adapter.py`), slower and for one sequence at
        a time. "auto": the first of these that can; the adapter runs Hugging Face directories only.
    kv_cache_dtype, activations: see `NativeOptions`. threads: of the native step; None: one for
        each physical core.
    download_progress, packing_progress: called with (bytes done, bytes in all) while a model is
        downloaded, and while its weights are laid out for the native step, which is done once.
    Raises ModelError or OptionError with what was given and what is possible.
    """
    torch_device = resolve_device(device)
    _check_dtype(dtype)
    options = NativeOptions(kv_cache_dtype, activations)
    check_threads(threads)
    if model_impl not in MODEL_IMPLS:
        raise OptionError(f"model_impl must be {', '.join(MODEL_IMPLS)}, got {model_impl!r}")
    path = names.resolve(str(name_or_path), progress=download_progress)
    if model_impl == "transformers" or (model_impl == "auto" and needs_adapter(path)):
        from outpace.models.hf.adapter import load_hf_adapter

        options.refuse_given("the transformers adapter does")
        torch_dtype = resolve_dtype(dtype, torch_device)
        return load_hf_adapter(path, torch_dtype, torch_device, name=str(name_or_path))
    reason = "model_impl='torch'" if model_impl == "torch" else why_not(dtype, torch_device)
    if model_impl == "native" and reason is not None:
        raise OptionError(f"model_impl='native' cannot run {name_or_path}: {reason}")
    checkpoint = open_checkpoint(path)
    check_tensors(checkpoint)
    tokenizer = checkpoint.tokenizer()
    check_tokenizer_size(tokenizer, checkpoint.config.vocab_size)
    num_logits = min(tokenizer.vocab_size, checkpoint.config.vocab_size)
    decoder: CausalModel
    if reason is None:
        decoder = load_native(
            checkpoint,
            dtype,
            options,
            num_logits=num_logits,
            threads=threads,
            progress=packing_progress,
        )
    else:
        options.refuse_given(reason)
        decoder = _load_torch(
            checkpoint, resolve_dtype(dtype, torch_device), torch_device, num_logits
        )
    return LoadedModel(
        decoder,
        tokenizer,
        str(name_or_path),
        checkpoint.fingerprint(),
        model_impl="native" if reason is None else "torch",
        generation_config=checkpoint.generation_config(),
    )


def _load_torch(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, num_logits: int
) -> Decoder:
    return in_own_thread(
        lambda: Decoder(
            checkpoint.config, checkpoint.load, dtype=dtype, device=device, num_logits=num_logits
        )
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
    """A torch dtype from its name. Raises OptionError for a packed format: torch has none."""
    _check_dtype(dtype)
    if dtype == "auto":
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float32
    if dtype not in DTYPES:
        raise OptionError(
            f"dtype={dtype!r} keeps weights packed, which only the native step does, and it does "
            f"not run this model here; use auto, {', '.join(DTYPES)}"
        )
    return DTYPES[dtype]


def _check_dtype(dtype: str) -> None:
    known = (*DTYPES, *PACKED_DTYPES)
    if dtype != "auto" and (not isinstance(dtype, str) or dtype not in known):
        raise OptionError(f"dtype must be auto, {', '.join(known)}, got {dtype!r}")


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
