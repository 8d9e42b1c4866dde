"""The ways of drafting that are considered, and which of them one replay can tell about."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, fields
from typing import Any

from outpace.drafters import options_of
from outpace.engine.speculative_config import parse_speculative_config
from outpace.errors import OptionError
from outpace.heads.bundled import bundled_for
from outpace.heads.kinds import detect_kind
from outpace.measure.methods import MAX_K, Config, name_of

AUTO = "auto"
EAGLE3 = "eagle3"
PREFIX_CONSISTENT = ("draft_model", "eagle", "eagle3", "early_exit", "medusa", "ngram", "suffix")
"""Methods whose chain of K tokens is the beginning of a longer one, and depends on the text alone
and not on what was drafted before: one replay tells of every length. `recycling` and `lookahead`
learn from what was fed, and the nodes of a tree compete for their places: there each K takes a
replay of its own."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of drafting. k: most draft tokens per step."""

    name: str
    config: Config
    method: str
    k: int
    is_tree: bool


@dataclass(frozen=True, slots=True)
class Family:
    """Candidates that differ in their number of draft tokens alone, the largest last.

    shares_replay: whether one replay with the longest tells of all.
    """

    candidates: tuple[Candidate, ...]
    shares_replay: bool

    @property
    def longest(self) -> Candidate:
        return self.candidates[-1]

    @property
    def lengths(self) -> list[int]:
        return [candidate.k for candidate in self.candidates]


def default_configs(fingerprint: str, draft: str | None, *, quick: bool) -> list[dict[str, Any]]:
    """What is considered where nothing was named: `auto`, both lookups, and the trained draft.

    fingerprint: of the target, for which a draft may come with this package. draft: the directory
    of another one, or the name of a draft model. quick: fewer lengths.
    """
    lengths = {
        "suffix": (2, 4, 8) if quick else (1, 2, 3, 4, 6, 8, 12, 16),
        "ngram": (2, 4) if quick else (1, 2, 3, 4, 6, 8),
    }
    configs: list[dict[str, Any]] = [{"method": AUTO}]
    for method, ks in lengths.items():
        configs += [{"method": method, "num_speculative_tokens": k} for k in ks]
    kind = _kind_of(draft) if draft is not None else EAGLE3
    if draft is None and bundled_for(fingerprint, EAGLE3) is None:
        return configs
    ks = (2, 3) if quick else (1, 2, 3, 4, 5, 6)
    configs += [{"method": kind, "num_speculative_tokens": k} for k in ks]
    if kind in ("eagle", EAGLE3) and not quick:
        configs.append({"method": kind, "num_speculative_tokens": 8, "shape": "tree"})
    return configs


def with_draft(configs: List[Config], draft: str | None) -> list[Config]:
    """The same with `model` added where a method takes one and none is named."""
    if draft is None:
        return list(configs)
    return [
        {**config, "model": draft} if "model" not in config and _takes_model(config) else config
        for config in configs
    ]


def candidates_of(configs: List[Config]) -> list[Candidate]:
    """Each configuration once. Raises OptionError for what is lossy, or drafts nothing."""
    found: dict[str, Candidate] = {}
    for config in configs:
        parsed = parse_speculative_config(config)
        if parsed.lossy is not None:
            raise OptionError(
                f"{name_of(config)}: acceptance_method='typical' changes what is said; advice is "
                "about lossless methods"
            )
        if parsed.options.draft_limit > MAX_K:
            raise OptionError(
                f"{name_of(config)}: at most {MAX_K} draft tokens are considered; give a smaller K"
            )
        if not parsed.options.draft_limit:
            raise OptionError(
                f"{parsed.method} with no draft tokens is plain decoding, which everything is "
                "compared with anyway; leave it out"
            )
        name = name_of(config) if "num_speculative_tokens" in config else parsed.method
        candidate = Candidate(
            name, config, parsed.method, parsed.options.num_speculative_tokens, _branches(config)
        )
        found.setdefault(name, candidate)
    return list(found.values())


def families_of(candidates: List[Candidate]) -> list[Family]:
    """The candidates in families, `auto` left out: it decides by the clock and is not replayed."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.method == AUTO:
            continue
        rest = {k: v for k, v in candidate.config.items() if k != "num_speculative_tokens"}
        groups.setdefault(repr(sorted(rest.items(), key=str)), []).append(candidate)
    found = []
    for group in groups.values():
        members = tuple(sorted(group, key=lambda candidate: candidate.k))
        first = members[0]
        if first.method in PREFIX_CONSISTENT and not first.is_tree:
            found.append(Family(members, shares_replay=True))
        else:
            found += [Family((member,), shares_replay=False) for member in members]
    return found


def _branches(config: Config) -> bool:
    options: Any = parse_speculative_config(config).options
    return (
        getattr(options, "shape", "chain") == "tree"
        or getattr(options, "num_continuations", 1) > 1
        or getattr(options, "num_branches", 1) > 1
    )


def _takes_model(config: Config) -> bool:
    return any(field.name == "model" for field in fields(options_of(config["method"])))


def _kind_of(draft: str) -> str:
    from pathlib import Path

    return detect_kind(draft) if Path(draft).is_dir() else "draft_model"
