"""Reading the rotary positions of a Hugging Face `config.json`.

Two spellings are about: `rope_theta` beside `rope_scaling`, and `rope_parameters` that holds both,
for Gemma 3 once per kind of layer.

Dynamic NTK and LongRoPE change the rotation once a sequence grows past a length. Keys already in
the cache would keep the old one, so that results depended on how tokens were grouped into passes.
Such models are read with the rotation that holds up to that length, and end there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outpace.models import rope
from outpace.models.config import MAX_INTEGER, Rope, is_finite, is_integer, positive, refuse

_KNOWN_KEYS = frozenset(
    {
        *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "finetuned"),
        *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *("short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
        *("mscale", "mscale_all_dim", "truncate"),
    }
)


_ORIGINAL_LEN = "original_max_position_embeddings"
_STRETCHED = ("yarn", "llama3", "longrope")


@dataclass(frozen=True, slots=True)
class RopeField:
    """The parameters of one kind of rotary positions, flat, and what messages call them.

    label: the field they stand in ("rope_scaling").
    """

    values: Mapping[str, Any]
    label: str
    name: str

    @property
    def kind(self) -> Any:
        stated = self.values.get("rope_type")
        return self.values.get("type", "default") if stated is None else stated

    def number(self, key: str) -> float:
        if self.values.get(key) is None:
            refuse(self.name, f"{self.label}.{key} is missing for rope type {self.kind!r}")
        return positive(self.name, f"{self.label}.{key}", self.values[key])

    def optional(self, key: str, default: float) -> float:
        """The number, or the default where it is absent, null or 0."""
        value = self.values.get(key)
        return default if value is None or value == 0 else self.number(key)

    def length(self, key: str, default: int) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if not is_integer(value) or not 1 <= value <= MAX_INTEGER:
            refuse(self.name, f"{self.label}.{key} must be a positive whole number, got {value!r}")
        return int(value)


def flat_rope(values: Mapping[str, Any], name: str, **family: Any) -> RopeField:
    """The rotary parameters of a model with one kind of them, from either spelling.

    family: what `rope_field` is to know about it.
    """
    stated = {key: values[key] for key in ("rope_scaling", "rope_parameters") if values.get(key)}
    label = next(iter(stated), "rope_parameters")
    if len(stated) == 2 and stated["rope_scaling"] != stated["rope_parameters"]:
        refuse(name, "rope_scaling and rope_parameters are both given and differ")
    return rope_field(stated.get(label), label, values, name, **family)


def rope_field(
    inner: Any,
    label: str,
    values: Mapping[str, Any],
    name: str,
    *,
    default_theta: float = 10000.0,
    theta_key: str = "rope_theta",
    default_partial: float | None = None,
    partial_key: str = "partial_rotary_factor",
) -> RopeField:
    """The parameters in `inner` (an object or None), completed by those beside it in `values`.

    theta_key, partial_key: what the family calls base and turning share outside of `inner`.
    default_partial: None where all channels of the family turn.
    Raises ModelError where the two contradict each other.
    """
    inner = {} if inner is None else inner
    if not isinstance(inner, Mapping):
        refuse(name, f"{label} must be an object or null, got {inner!r:.80}")
    for key, value in inner.items():
        if isinstance(value, Mapping):
            refuse(name, f"{label} per layer kind ({key}) is not supported")
    merged = dict(inner)
    for key, outer, default in (
        ("rope_theta", theta_key, default_theta),
        ("partial_rotary_factor", partial_key, default_partial or 1.0),
    ):
        inside, outside = inner.get(key), values.get(outer)
        if inside is not None and outside is not None and inside != outside:
            refuse(name, f"{outer} is {outside!r} but {label}.{key} is {inside!r}")
        merged[key] = next((value for value in (inside, outside) if value is not None), default)
    kind = inner.get("rope_type", inner.get("type"))
    original = values.get(_ORIGINAL_LEN)
    if kind in _STRETCHED and original is not None:
        # It may stand beside the object; transformers moves it in as well.
        if inner.get(_ORIGINAL_LEN) not in (None, original):
            refuse(
                name,
                f"{_ORIGINAL_LEN} is {original!r:.80} but {label}.{_ORIGINAL_LEN} is "
                f"{inner[_ORIGINAL_LEN]!r:.80}",
            )
        merged[_ORIGINAL_LEN] = original
    if default_partial is None and merged["partial_rotary_factor"] != 1:
        share = merged["partial_rotary_factor"]
        refuse(name, f"partial_rotary_factor {share!r:.80} is not supported for this family")
    return RopeField(merged, label, name)


def resolve_rope(field: RopeField, head_dim: int, max_len: int) -> tuple[Rope, int]:
    """The rotation, and the most tokens it is valid for (`max_len` or another).

    head_dim: channels of a head. max_len: the configuration's max_position_embeddings.
    Raises ModelError for an unknown rope type, and for missing, bad or unknown parameters.
    """
    unknown = sorted(set(field.values) - _KNOWN_KEYS)
    if unknown:
        refuse(field.name, f"{field.label}.{unknown[0]} is not supported")
    kind = field.kind
    if not isinstance(kind, str) or kind not in _RESOLVERS:
        kinds = ", ".join(sorted(_RESOLVERS))
        refuse(field.name, f"{field.label} of type {kind!r} is not supported; supported: {kinds}")
    dim = _turning_dim(field, head_dim)
    # The plain names are what messages about the commonest fields should say.
    theta = positive(field.name, "rope_theta", field.values["rope_theta"])
    try:
        frequencies, attention_factor, limit = _RESOLVERS[kind](field, theta, dim, max_len)
    except (ArithmeticError, ValueError) as error:
        refuse(field.name, f"{field.label} has no frequencies ({error}): {dict(field.values)!r}")
    # Angles are float32: beyond this they would overflow.
    if not all(0 < frequency < 1e9 for frequency in frequencies):
        refuse(field.name, f"{field.label} yields frequencies that are not between 0 and 1e9")
    attention_factor = positive(field.name, f"{field.label}.attention_factor", attention_factor)
    return Rope(frequencies, attention_factor), limit


def _turning_dim(field: RopeField, head_dim: int) -> int:
    if not is_integer(head_dim) or not 2 <= head_dim <= 4096:
        refuse(field.name, f"head_dim must be even for rotary embedding, got {head_dim!r}")
    share = positive(field.name, "partial_rotary_factor", field.values["partial_rotary_factor"])
    dim = int(head_dim * min(share, 2.0))
    if share == 1 and dim % 2:
        refuse(field.name, f"head_dim must be even for rotary embedding, got {head_dim!r}")
    if dim % 2 or not 2 <= dim <= head_dim:
        refuse(
            field.name,
            f"partial_rotary_factor {share:g} turns {dim} of {head_dim} channels; "
            "it must be an even number of them",
        )
    return dim


_Resolved = tuple[tuple[float, ...], float, int]


def _default(field: RopeField, theta: float, dim: int, max_len: int) -> _Resolved:
    return rope.default_frequencies(theta, dim), 1.0, max_len


def _dynamic(field: RopeField, theta: float, dim: int, max_len: int) -> _Resolved:
    field.number("factor")
    return rope.default_frequencies(theta, dim), 1.0, max_len


def _linear(field: RopeField, theta: float, dim: int, max_len: int) -> _Resolved:
    return rope.linear_frequencies(theta, dim, field.number("factor")), 1.0, max_len


def _llama3(field: RopeField, theta: float, dim: int, max_len: int) -> _Resolved:
    low, high = field.number("low_freq_factor"), field.number("high_freq_factor")
    if low >= high:
        refuse(field.name, f"{field.label}.low_freq_factor must be below high_freq_factor")
    frequencies = rope.llama3_frequencies(
        theta,
        dim,
        factor=field.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_len=field.length("original_max_position_embeddings", max_len),
    )
    return frequencies, 1.0, max_len


def _yarn(field: RopeField, theta: float, dim: int, max_len: int) -> _Resolved:
    original = field.length("original_max_position_embeddings", max_len)
    factor = field.optional("factor", max_len / original)
    truncate = field.values.get("truncate")
    if truncate is not None and not isinstance(truncate, bool):
        refuse(field.name, f"{field.label}.truncate must be true or false, got {truncate!r}")
    frequencies = rope.yarn_frequencies(
        theta,
        dim,
        factor=factor,
        original_len=original,
        beta_fast=field.optional("beta_fast", 32.0),
        beta_slow=field.optional("beta_slow", 1.0),
        truncate=truncate is not False,
    )
    mscale = [field.optional(key, 0.0) for key in ("mscale", "mscale_all_dim")]
    stated = field.values.get("attention_factor")
    attention_factor = rope.yarn_attention_factor(factor, *mscale) if stated is None else stated
    if field.values.get("original_max_position_embeddings") is not None:
        # Qwen's files keep the length of pretraining as max_position_embeddings; the stretched
        # rotation is made for more.
        max_len = max(max_len, int(min(original * factor, MAX_INTEGER)))
    return frequencies, attention_factor, max_len


def _longrope(field: RopeField, theta: float, dim: int, max_len: int) -> _Resolved:
    original = field.length("original_max_position_embeddings", max_len)
    for key in ("short_factor", "long_factor"):
        factors = field.values.get(key)
        if not isinstance(factors, list) or len(factors) != dim // 2:
            refuse(field.name, f"{field.label}.{key} must be a list of {dim // 2} numbers")
        if not all(is_finite(factor) and factor > 0 for factor in factors):
            refuse(field.name, f"{field.label}.{key} must hold positive finite numbers")
    frequencies = rope.longrope_frequencies(theta, dim, field.values["short_factor"])
    attention_factor = field.values.get("attention_factor")
    if attention_factor is None:
        factor = field.optional("factor", max_len / original)
        attention_factor = rope.longrope_attention_factor(factor, original)
    return frequencies, attention_factor, min(max_len, original)


_RESOLVERS: dict[str, Callable[[RopeField, float, int, int], _Resolved]] = {
    "default": _default,
    "none": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
