"""From what a user writes about speculation to a method and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from outpace.drafters import DEFAULT_METHOD, drafter_class, make_options
from outpace.drafters.base import Drafter, DrafterOptions
from outpace.errors import OptionError
from outpace.verification.lossy import TypicalAcceptance

_NGRAM_NAMES = ("ngram", "[ngram]")
_ACCEPTANCE_METHODS = {
    "exact": "exact",
    "typical": "typical",
    # What older versions of vLLM call the two.
    "rejection_sampler": "exact",
    "typical_acceptance_sampler": "typical",
}


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """A drafting method by name, its class and its options.

    lossy: the rule by which draft tokens are accepted if it is not a lossless one.
    """

    method: str
    drafter: type[Drafter]
    options: DrafterOptions
    lossy: TypicalAcceptance | None = None


def parse_speculative_config(
    config: Mapping[str, Any] | None = None,
    *,
    speculative_model: Any = None,
    num_speculative_tokens: int | None = None,
) -> SpeculativeConfig:
    """The method and its options from a configuration, or from the older shorthand.

    `{"method": ..., **options}` with vLLM's keys, where the method is a name or a `Drafter`
    subclass. Without `method`, a `model` means "draft_model", as in vLLM, and everything else the
    options of `DEFAULT_METHOD`; {"method": "none"} is plain decoding. The shorthand
    `speculative_model=..., num_speculative_tokens=...` is the same; as in vLLM, the model name
    "ngram" or "[ngram]" means prompt lookup.
    `"acceptance_method": "typical"` with `posterior_threshold` and `posterior_alpha` accepts draft
    tokens by `TypicalAcceptance`, which is lossy; "exact" is the default.
    Raises OptionError for unknown methods, unknown keys and contradictions.
    """
    if config is not None and speculative_model is not None:
        raise OptionError("give either speculative_config or speculative_model, not both")
    if config is not None and not isinstance(config, Mapping):
        raise OptionError(f"speculative_config must be a mapping, got {config!r}")
    values = dict(config or {})
    if speculative_model is not None:
        values["model"] = speculative_model
    if num_speculative_tokens is not None:
        if "num_speculative_tokens" in values:
            raise OptionError("num_speculative_tokens is given twice")
        values["num_speculative_tokens"] = num_speculative_tokens
    if isinstance(values.get("model"), str) and values["model"] in _NGRAM_NAMES:
        if values.pop("method", "ngram") != "ngram":
            raise OptionError("model 'ngram' contradicts the method given")
        del values["model"]
        values["method"] = "ngram"
    lossy = _pop_acceptance(values)
    method = values.pop("method", "draft_model" if "model" in values else DEFAULT_METHOD)
    if lossy is not None and method == "none":
        raise OptionError("acceptance_method='typical' with method 'none': nothing is drafted")
    drafter = drafter_class(method)
    name = method if isinstance(method, str) else drafter.method_name()
    return SpeculativeConfig(name, drafter, make_options(drafter, values), lossy)


def _pop_acceptance(values: dict[str, Any]) -> TypicalAcceptance | None:
    """Take what says how draft tokens are accepted out of `values`."""
    asked = values.pop("acceptance_method", "exact")
    if not isinstance(asked, str) or asked not in _ACCEPTANCE_METHODS:
        raise OptionError(f"acceptance_method must be 'exact' or 'typical', got {asked!r}")
    names = [field.name for field in fields(TypicalAcceptance)]
    thresholds = {name: values.pop(name) for name in names if name in values}
    if _ACCEPTANCE_METHODS[asked] == "typical":
        return TypicalAcceptance(**thresholds)
    if thresholds:
        raise OptionError(
            f"{', '.join(thresholds)} only has a meaning with acceptance_method='typical', which "
            "is lossy"
        )
    return None
