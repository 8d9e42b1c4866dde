"""Ways of computing a model, named as in `q4_1,activations=int8`, and how they compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from outpace.errors import OptionError
from outpace.measure.quality import Quality, compare_models, make_windows, num_positions
from outpace.models.load import DTYPES, MODEL_IMPLS, LoadedModel, Progress, load_model
from outpace.models.native.formats import PACKED_DTYPES, NativeOptions

AUTO = "auto"
EXAMPLE = "bfloat16,model_impl=torch"
_DTYPES = (AUTO, *DTYPES, *PACKED_DTYPES)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Options of `load_model` by their own names.

    model: another file or directory of the same model, for what needs it in another shape.
    Raises OptionError for values that no model could be loaded with.
    """

    dtype: str = AUTO
    activations: str = AUTO
    kv_cache_dtype: str = AUTO
    model_impl: str = AUTO
    model: str | None = None

    def __post_init__(self) -> None:
        NativeOptions(self.kv_cache_dtype, self.activations)
        for name, known in (("dtype", _DTYPES), ("model_impl", MODEL_IMPLS)):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(f"{name} must be {', '.join(known)}, got {value!r}")

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """Read `key=value` settings separated by commas; a value without a key is the dtype.

        Raises OptionError for an unknown key, a key given twice, or an empty value.
        """
        known = [field.name for field in fields(cls)]
        values: dict[str, str] = {}
        for part in text.split(","):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals:
                key, value = "dtype", key
            key = key.replace("-", "_")
            if key not in known:
                raise OptionError(
                    f"{key!r} in {text!r} is no setting; use {', '.join(known)}, as in {EXAMPLE}"
                )
            if not value:
                raise OptionError(f"{text!r} gives {key} no value; write it as in {EXAMPLE}")
            if key in values:
                raise OptionError(f"{text!r} gives {key} twice")
            values[key] = value
        return cls(**values)

    @property
    def label(self) -> str:
        """The settings as `parse` reads them."""
        others = [(field.name, getattr(self, field.name)) for field in fields(self)[1:]]
        chosen = [f"{name}={value}" for name, value in others if value not in (None, AUTO)]
        return ",".join([self.dtype, *chosen])

    def load(
        self, model: str, *, threads: int | None = None, progress: Progress | None = None
    ) -> LoadedModel:
        """Load `model`, or this configuration's own, in this way.

        threads: of the native step. progress: of downloading and packing.
        """
        return load_model(
            self.model or model,
            dtype=self.dtype,
            model_impl=self.model_impl,
            activations=self.activations,
            kv_cache_dtype=self.kv_cache_dtype,
            threads=threads,
            download_progress=progress,
            packing_progress=progress,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration against the reference. runs_on: what computed it, in words."""

    label: str
    runs_on: str
    quality: Quality


def compare_configurations(
    model: str,
    reference: Configuration,
    ways: Sequence[Configuration],
    texts: Sequence[str],
    *,
    window_len: int,
    max_tokens: int | None = None,
    threads: int | None = None,
    progress: Callable[[str, int, int | None], object] = lambda what, done, total: None,
) -> list[Comparison]:
    """Measure each way against the reference, on the same windows of the texts.

    Beside the reference, one model is in memory at a time. progress(what, positions done, in all)
    is called all along. Raises OptionError or ModelError for what cannot be compared.
    """
    labels = [way.label for way in ways]
    for label in labels:
        if labels.count(label) > 1:
            raise OptionError(f"{label} is to be compared twice; name it once")
    base = reference.load(model, threads=threads, progress=_loading(progress, model))
    windows = make_windows(texts, base.tokenizer, window_len=window_len, max_tokens=max_tokens)
    total, done = num_positions(windows) * len(ways), 0
    found = []
    for way in ways:
        other = way.load(model, threads=threads, progress=_loading(progress, way.label))
        progress(way.label, done, total)

        def tick(count: int, label: str = way.label) -> None:
            nonlocal done
            done += count
            progress(label, done, total)

        quality = compare_models(base, other, windows, tick)
        found.append(Comparison(way.label, other.runs_on, quality))
    return found


def _loading(progress: Callable[[str, int, int | None], object], what: str) -> Progress:
    def report(done: int, total: int) -> None:
        progress(f"loading {what}", done, total or None)

    return report


def comparison_json(found: Sequence[Comparison]) -> dict[str, Any]:
    """Everything that was found, in plain values."""
    first = found[0].quality
    return {
        "num_tokens": first.num_tokens,
        "reference_perplexity": first.reference_perplexity,
        "configurations": [
            {
                "configuration": comparison.label,
                "runs_on": comparison.runs_on,
                **asdict(comparison.quality),
                "same_choice_share": comparison.quality.same_choice_share,
                "same_choice_interval": comparison.quality.same_choice_interval,
            }
            for comparison in found
        ],
    }
