"""Prompts in groups that are decoded together, and groups in laps."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from outpace.measure.prompts import BenchPrompt

ALL = "all"
"""The column of groups whose prompts are of several categories, and of all groups together."""


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts that are decoded together. column: their category."""

    label: str
    column: str
    prompts: tuple[BenchPrompt, ...]

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        return [prompt.token_ids for prompt in self.prompts]


def make_laps(prompts: Sequence[BenchPrompt], batch: int, seed: int) -> list[list[Group]]:
    """All prompts in groups of `batch`, in laps that are run one after another as time allows.

    Of single prompts a lap has one of each category, in the order of the prompts. Larger groups mix
    categories evenly and are a lap each; prompts come again where the last one would not be full.
    """
    in_turn = _in_turn(prompts, seed)
    if batch > 1:
        return [
            [Group(f"batch {batch}, {number + 1}", ALL, _cut(in_turn, number * batch, batch))]
            for number in range(math.ceil(len(in_turn) / batch))
        ]
    rows = zip_longest(*_by_category(prompts).values())
    return [
        [Group(prompt.label, prompt.category, (prompt,)) for prompt in row if prompt is not None]
        for row in rows
    ]


def _by_category(prompts: Sequence[BenchPrompt]) -> dict[str, list[BenchPrompt]]:
    found: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        found.setdefault(prompt.category, []).append(prompt)
    return found


def _in_turn(prompts: Sequence[BenchPrompt], seed: int) -> list[BenchPrompt]:
    """One of every category after another, in random order within each."""
    shuffled = random.Random(f"{seed}batches").sample(list(prompts), len(prompts))
    rows = zip_longest(*_by_category(shuffled).values())
    return [prompt for row in rows for prompt in row if prompt is not None]


def _cut(prompts: Sequence[BenchPrompt], start: int, count: int) -> tuple[BenchPrompt, ...]:
    return tuple(prompts[(start + index) % len(prompts)] for index in range(count))
