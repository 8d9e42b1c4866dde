"""The options of how a model is loaded, the same in every command that has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from outpace.models.load import LoadedModel

DEFAULT_MODEL = "smollm2-135m"
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64", "q4_0", "q4_1", "q8_0")
MODEL_IMPLS = ("auto", "native", "torch", "transformers")
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16")
ACTIVATIONS = ("auto", "bfloat16", "int16", "int8")

Decorator = Callable[[Any], Any]

_OPTIONS: dict[str, Decorator] = {
    "model": click.option(
        "--model",
        default=DEFAULT_MODEL,
        show_default=True,
        metavar="NAME",
        help="Alias, GGUF file, Hugging Face folder or hub id.",
    ),
    "dtype": click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="auto",
        show_default=True,
        metavar=f"[{'|'.join(DTYPES)}]",
        help="What weights are held in; auto is a packed GGUF file's own format, else bfloat16 "
        "(float32 where only torch runs and has no bfloat16 in hardware). q4_0, q4_1 and q8_0 "
        "only of files stored so.",
    ),
    "model_impl": click.option(
        "--model-impl",
        type=click.Choice(MODEL_IMPLS),
        default="auto",
        show_default=True,
        help="What computes the model; auto is the first of the others that can.",
    ),
    "kv_cache_dtype": click.option(
        "--kv-cache-dtype",
        type=click.Choice(KV_CACHE_DTYPES),
        default="auto",
        show_default=True,
        help="What the native step keeps keys and values in; auto is float32 with float32 "
        "weights, else bfloat16.",
    ),
    "activations": click.option(
        "--activations",
        type=click.Choice(ACTIVATIONS),
        default="auto",
        show_default=True,
        help="What activations are rounded to before they meet packed weights (q4_0, q4_1, "
        "q8_0): int16 is nearly exact, int8 a little faster and coarser; auto is int16.",
    ),
    "threads": click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Processor threads to use.  [default: one for each physical core]",
    ),
}


def model_options(*names: str) -> Decorator:
    """Add the options of these names, in this order."""

    def decorate(function: Any) -> Any:
        for name in reversed(names):
            function = _OPTIONS[name](function)
        return function

    return decorate


def load_target(values: Mapping[str, Any]) -> LoadedModel:
    """Load the model that the options name, showing how far a download or packing is.

    values: what was given, by option; those that a command does not have are
    `load_model`'s own. Threads are torch's as well.
    """
    from outpace.cli.progress import DownloadProgress
    from outpace.models.load import load_model

    names = ("dtype", "model_impl", "kv_cache_dtype", "activations", "threads", "device")
    with DownloadProgress(f"loading {values['model']}") as progress:
        loaded = load_model(
            values["model"],
            **{name: values[name] for name in names if name in values},
            download_progress=progress,
            packing_progress=progress,
        )
    if values["threads"] is not None:
        import torch

        torch.set_num_threads(values["threads"])
    return loaded
