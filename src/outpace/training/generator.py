"""What training asks of whatever generates: answers to token ids, in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as List
from itertools import accumulate
from typing import Protocol, TypeVar

from outpace.params import SamplingParams

T = TypeVar("T")
BATCH = 256
"""Prompts handed over at a time."""


class Generator(Protocol):
    """A target with an engine around it."""

    def generate(
        self, prompts: List[List[int]], params: List[SamplingParams], /
    ) -> Iterator[tuple[int, List[int]]]:
        """Yield (index of the prompt, ids of its answer) for each prompt, in any order, as they
        finish. An end token that was drawn is the last id."""


def finished_in_order(
    generator: Generator, prompts: List[List[int]], params: List[SamplingParams]
) -> Iterator[list[int]]:
    """The answers in the order of the prompts, each as soon as those before it are there too."""
    waiting: dict[int, list[int]] = {}
    following = 0
    for index, token_ids in generator.generate(prompts, params):
        waiting[index] = [int(token) for token in token_ids]
        while following in waiting:
            yield waiting.pop(following)
            following += 1
    assert following == len(prompts), f"{following} of {len(prompts)} prompts were answered"


def derived_seed(*parts: object) -> int:
    """A seed for one request, from what identifies it: its answer does not depend on others."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def derived_share(*parts: object) -> float:
    """A number in [0, 1) from what identifies a thing."""
    return derived_seed(*parts) / 2**63


def choose(position: float, shares: List[tuple[T, float]]) -> T:
    """The thing that a `position` in [0, 1) falls on. Shares are relative to their sum."""
    ends = accumulate(share for _, share in shares)
    total = sum(share for _, share in shares)
    inside = (thing for (thing, _), end in zip(shares, ends, strict=True) if position * total < end)
    return next(inside, shares[-1][0])
