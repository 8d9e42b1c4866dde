"""Which methods are compared: the subject of the benchmark, and fixed ones beside it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from outpace.drafters import options_of
from outpace.engine.speculative_config import parse_speculative_config
from outpace.errors import OptionError
from outpace.measure.methods import PLAIN, Config, name_of, parse_methods
from outpace.measure.timing import PLAIN_CONFIG

NOTHING = "none"


def as_config(text: str) -> dict[str, Any]:
    """A configuration from METHOD, METHOD:K or METHOD:K:SHAPE."""
    configs = as_configs(text)
    if len(configs) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one method")
    return configs[0]


def as_configs(text: str) -> tuple[dict[str, Any], ...]:
    """Configurations from several of these, separated by commas; K may be a range: "ngram:1-4"."""
    if text == NOTHING:
        return ()
    try:
        return tuple(parse_methods(text))
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def compared(
    subject: Config, fixed: Sequence[Config], draft: str | None
) -> tuple[str, dict[str, Config]]:
    """The subject's name, and all configurations by name, plain decoding first.

    draft: for methods that take a trained one. Raises OptionError for an unknown method or option.
    """
    full_name = name_of(subject)
    name = full_name if "num_speculative_tokens" in subject else str(subject["method"])
    others = {name_of(config): _with_draft(config, draft) for config in fixed}
    others.pop(full_name, None)
    return name, {PLAIN: PLAIN_CONFIG, name: _with_draft(subject, draft), **others}


def tree_methods(configs: Mapping[str, Config]) -> list[str]:
    """Names of those that draft trees."""
    return [
        name
        for name, config in configs.items()
        if getattr(parse_speculative_config(config).options, "shape", None) == "tree"
    ]


def _with_draft(config: Config, draft: str | None) -> Config:
    takes_one = any(field.name == "model" for field in fields(options_of(config["method"])))
    return {**config, "model": draft} if draft is not None and takes_one else config
