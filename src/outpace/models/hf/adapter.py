"""Any causal language model of `transformers`, run by `transformers`: one sequence at a time.

For architectures that our own decoder does not have. What speculation asks of a model is a cache
that forgets rejected tokens without a trace. Caches of a kind that cannot are refused by name, and
the others have to show it before the first request.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outpace.errors import ModelError
from outpace.models.checkpoint import content_key
from outpace.models.config import MAX_INTEGER, read_json, refuse
from outpace.models.hf import shards
from outpace.models.hf.adapter_cache import CANNOT_ROLL_BACK, HFCache, check_rewind, held_bytes
from outpace.models.hf.checkpoint import read_generation_config
from outpace.models.hf.fields import refuse_lora, refuse_own_code, refuse_packaging
from outpace.models.load import LoadedModel, check_tokenizer_size
from outpace.models.threads import in_own_thread
from outpace.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from outpace.models.decoder import Batch

# Where a configuration says how long a sequence may be, most binding name first.
_LENGTH_FIELDS = ("max_position_embeddings", "max_seq_len", "seq_length")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_CACHE_ARGUMENTS = ("cache", "past_key_values")
# Keys and values of every token; of those in a window; nothing, where a layer shares another's.
_CACHE_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer")
_NOT_CONTENT = ("_name_or_path", "transformers_version")
# In standard deviations of the logits: half precision rounds every way of splitting a pass in
# another way, and a token that was not forgotten moves the logits by about one.
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.25}
_MAX_LISTED = 5


def load_hf_adapter(
    path: Path, dtype: torch.dtype, device: torch.device, *, name: str | None = None
) -> LoadedModel:
    """Load a Hugging Face directory to be run by `transformers` (the extra `outpace[hf]`).

    Raises ModelError, with the reason, for a model that cannot be loaded completely, asks for code
    of its own, or has a cache that cannot be rolled back.
    """
    path = Path(path)
    if not path.is_dir():
        refuse(str(path), "the transformers adapter reads Hugging Face directories, not GGUF files")
    values = read_json(path / "config.json", "a model directory must have config.json")
    _refuse_by_files(path, values)
    tokenizer = Tokenizer.from_directory(path)
    model = in_own_thread(
        lambda: HFModel(_load(path, dtype).to(device), str(path), num_tokens=tokenizer.vocab_size)
    )
    check_tokenizer_size(tokenizer, model.vocab_size)
    return LoadedModel(
        model,
        tokenizer,
        name or str(path),
        _fingerprint(path, values),
        model_impl="transformers",
        generation_config=read_generation_config(path),
    )


class HFModel:
    """A causal `PreTrainedModel` behind the interface of our own decoder.

    num_tokens: how many leading vocabulary rows have a token. A pass takes one sequence and a cache
    has one row; `forward` mutates only the cache passed to it.
    Raises ModelError unless the model's cache can be rolled back.
    """

    max_rows = 1

    def __init__(self, model: Any, name: str, *, num_tokens: int) -> None:
        self.name = name
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        self._accepts = inspect.signature(model.forward).parameters.keys()
        self.num_layers: int = self._config.num_hidden_layers
        self.max_len = _max_len(self._config)
        num_embeddings: int = model.get_input_embeddings().weight.shape[0]
        self.vocab_size, self._token_bytes = self._probe(min(num_tokens, num_embeddings))
        self.num_logits = min(num_tokens, num_embeddings, self.vocab_size)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def capturable(self) -> range:
        # The last of transformers' hidden states has been through the final norm in most models,
        # and nothing says in which.
        return range(self.num_layers)

    def kv_bytes(self, *, num_rows: int, capacity: int) -> int:
        """Bytes of full caches, from what the layers held per token when they were tried."""
        return self._token_bytes * capacity * num_rows

    def new_cache(self, *, num_rows: int, capacity: int) -> HFCache:
        """A cache for one sequence. Raises ModelError if more rows are wanted."""
        if num_rows != 1:
            refuse(
                self.name,
                "runs on the transformers adapter, which holds one sequence at a time, but a "
                f"cache for {num_rows} is wanted; set max_num_seqs to 1",
            )
        num_bytes = self.kv_bytes(num_rows=1, capacity=capacity)
        return HFCache(self._new_past(), capacity=capacity, num_bytes=num_bytes)

    @torch.inference_mode()
    def forward(
        self, batch: Batch, cache: HFCache, capture: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """One pass over the new tokens of one sequence; see `CausalModel.forward`."""
        (segment,) = batch.segments
        assert not segment.parents, "the adapter feeds chains, not trees"
        token_ids, rows = (
            torch.tensor(values, dtype=torch.int64, device=self.device)
            for values in (batch.token_ids, batch.logit_rows)
        )
        output = self._run(token_ids, segment.start, cache.past, rows, bool(capture))
        logits = output.logits[0]
        if logits.shape[0] != rows.shape[0]:
            logits = logits.index_select(0, rows)
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        hidden = {layer: output.hidden_states[layer][0] for layer in capture}
        return logits[:, : self.num_logits].to(wide), hidden

    def _run(self, token_ids: Tensor, start: int, past: Any, rows: Tensor, hidden: bool) -> Any:
        """Call the model on tokens [N] at positions `start` and on.

        What it would otherwise guess from shapes is said; what its `forward` has no name for is
        left out.
        """
        stop = start + token_ids.shape[0]
        said = {
            "position_ids": torch.arange(start, stop, device=self.device)[None],
            "attention_mask": torch.ones(1, stop, dtype=torch.int64, device=self.device),
            "logits_to_keep": rows,
        }
        arguments: dict[str, Any] = {k: v for k, v in said.items() if k in self._accepts}
        if past is not None:
            arguments[_cache_argument(self._accepts, self.name)] = past
        if hidden:
            arguments["output_hidden_states"] = True
        return self._model(
            input_ids=token_ids[None], use_cache=past is not None, return_dict=True, **arguments
        )

    @torch.inference_mode()
    def _probe(self, num_tokens: int) -> tuple[int, int]:
        """Try the cache with a few tokens. Returns the number of vocabulary rows and the bytes of
        a cached token."""
        vocab_sizes, past = [], self._new_past()

        def feed(token_ids: list[int], start: int, past: Any) -> Tensor:
            ids = torch.tensor(token_ids, device=self.device)
            rows = torch.arange(len(token_ids), device=self.device)
            logits: Tensor = self._run(ids, start, past, rows, False).logits[0]
            vocab_sizes.append(logits.shape[-1])
            return logits.double()

        tolerance = _TOLERANCE[self.dtype]
        try:
            length = check_rewind(feed, past, num_tokens, tolerance=tolerance, name=self.name)
        except ModelError:
            raise
        except Exception as error:  # kernels that lack the dtype, code that overflows in it, ...
            raise ModelError(
                f"{self.name}: transformers cannot run it in {str(self.dtype)[6:]} "
                f"({type(error).__name__}: {_first_line(error)})"
            ) from error
        return vocab_sizes[0], max(held_bytes(past) // length, 1)

    def _new_past(self) -> Any:
        """The model's own kind of cache, except that sliding-window layers keep everything: what
        lies before a window is needed again after a rollback. The mask still has the window."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        past = DynamicCache(config=self._config)
        layer_class: Any = DynamicLayer
        for index, layer in enumerate(past.layers):
            if type(layer).__name__ == "DynamicSlidingWindowLayer":
                past.layers[index] = layer_class()
        return past


def _refuse_by_files(path: Path, values: Mapping[str, Any]) -> None:
    name = str(path)
    refuse_lora(path)
    refuse_own_code(values, name)
    for key in ("quantization_config", "compression_config"):
        if values.get(key) is not None:
            refuse(name, f"quantised weights ({key}) are not run through the transformers adapter")
    refuse_packaging(values, name)


def _load(path: Path, dtype: torch.dtype) -> Any:
    """The model, all of its weights from the checkpoint, in evaluation mode on the CPU."""
    transformers = _import_transformers(str(path))
    config = _config(transformers, path)
    model_class = _model_class(transformers, config, path)
    _refuse_cache_kinds(transformers, config, path)
    try:
        with _no_progress_bar(transformers):
            model, report = model_class.from_pretrained(
                path,
                config=config,
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, by name
            )
    except Exception as error:  # whatever a damaged or unusual checkpoint provokes in there
        raise ModelError(
            f"{path}: transformers cannot load it ({type(error).__name__}: {_first_line(error)})"
        ) from error
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report.get(kind):
            keys = sorted(map(str, report[kind]))
            more = f" and {len(keys) - _MAX_LISTED} more" if len(keys) > _MAX_LISTED else ""
            refuse(
                str(path),
                f"weights do not fit {model_class.__name__}: {kind.replace('_', ' ')} "
                f"{', '.join(keys[:_MAX_LISTED])}{more}",
            )
    return model.eval()


def _import_transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError:
        refuse(
            name,
            "our own decoder does not run this model, and the library that may, transformers, is "
            "not installed; install the extra: pip install 'outpace[hf]'",
        )
    return transformers


def _config(transformers: Any, path: Path) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:  # it runs whatever checks the model's own configuration class has
        raise ModelError(
            f"{path}: transformers {transformers.__version__} cannot read its config.json "
            f"({_first_line(error)})"
        ) from error


def _model_class(transformers: Any, config: Any, path: Path) -> Any:
    """The class for causal language modelling. Raises ModelError if there is none, or if it keeps
    what it has read elsewhere than in a cache that we can hold."""
    kind = config.model_type
    if config.is_encoder_decoder:
        refuse(str(path), f"{kind!r} is an encoder-decoder model; only decoders are run")
    classes = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in classes:
        refuse(str(path), f"transformers has no causal language model for architecture {kind!r}")
    found = classes[type(config)]
    model_class = found[0] if isinstance(found, tuple | list) else found
    if getattr(model_class, "_is_stateful", False):
        refuse(
            str(path),
            f"architecture {kind!r} has recurrent layers, whose state {CANNOT_ROLL_BACK}",
        )
    _cache_argument(inspect.signature(model_class.forward).parameters.keys(), str(path))
    return model_class


def _cache_argument(accepted: Collection[str], name: str) -> str:
    for argument in _CACHE_ARGUMENTS:
        if argument in accepted:
            return argument
    refuse(
        name,
        "its class in transformers takes no key/value cache: what it keeps of the tokens it has "
        f"read {CANNOT_ROLL_BACK}",
    )


def _refuse_cache_kinds(transformers: Any, config: Any, path: Path) -> None:
    """Raise ModelError for layers that keep something else than the keys and values of tokens."""
    try:
        past = transformers.DynamicCache(config=config.get_text_config(decoder=True))
    except Exception as error:  # it reads what the model's own configuration class made up
        raise ModelError(
            f"{path}: transformers cannot make a cache for it ({_first_line(error)})"
        ) from error
    for layer in past.layers:
        kind = type(layer).__name__
        if kind not in _CACHE_LAYERS:
            known = CANNOT_ROLL_BACK if "Linear" in kind else "is not known to roll back exactly"
            refuse(
                str(path),
                f"architecture {config.model_type!r} has layers whose cache ({kind}) {known}",
            )


def _max_len(config: Any) -> int:
    """Most tokens of a sequence, by the configuration.

    Some rotary scalings change all frequencies once a sequence is longer than some length, and
    keys cached before would stay as they were: such a model is run up to that length.
    """
    stated = [getattr(config, field, None) for field in _LENGTH_FIELDS]
    limits = [value for value in stated if isinstance(value, int) and value > 0][:1]
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for part in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):
        if part.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            length = part.get("original_max_position_embeddings")
            limits += [length] if length else []
    return min(limits, default=MAX_INTEGER)


def _fingerprint(path: Path, values: Mapping[str, Any]) -> str:
    """Content key like `Checkpoint.fingerprint`, from config.json as it stands."""
    stored = shards.open_all(path)
    config = {key: value for key, value in values.items() if key not in _NOT_CONTENT}
    names = sorted(stored.names())
    return content_key(
        config, [(n, stored.dtype(n), stored.shape(n), stored.samples(n)) for n in names]
    )


@contextmanager
def _no_progress_bar(transformers: Any) -> Iterator[None]:
    logging = transformers.utils.logging
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
