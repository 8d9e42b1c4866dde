"""From what a user writes about speculation to a method and its options."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
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


def parse_request_methods(methods: Any, default: SpeculativeConfig) -> list[SpeculativeConfig]:
    """The further methods of an engine, which single requests may name.

    methods: a list of names, `Drafter` subclasses and mappings like those of
        `parse_speculative_config`; in a mapping the method must be named, or a `model` given.
    default: the engine's own method. Its rule of acceptance holds for all requests.
    Raises OptionError for what is no method, or stands there twice.
    """
    if not isinstance(methods, List) or isinstance(methods, str):
        raise OptionError(f"request_methods must be a list of methods, got {methods!r:.80}")
    found: list[SpeculativeConfig] = []
    for given in methods:
        config = _parse_request_method(given)
        if config.method == "none":
            raise OptionError("request_methods: any request may name 'none'; leave it out")
        if config.method == default.method:
            raise OptionError(
                f"request_methods: {config.method!r} is the engine's own method; leave it out"
            )
        if config.method in [other.method for other in found]:
            raise OptionError(f"request_methods: {config.method!r} is given twice")
        found.append(config)
    return found


def _parse_request_method(given: Any) -> SpeculativeConfig:
    if not isinstance(given, Mapping):
        return parse_speculative_config({"method": given})
    if not {"method", "model"} & given.keys():
        raise OptionError(f"request_methods: {dict(given)!r:.80} names no method")
    if "acceptance_method" in given:
        raise OptionError(
            "request_methods: acceptance_method is one for all requests; give it to "
            "speculative_config"
        )
    return parse_speculative_config(given)


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
