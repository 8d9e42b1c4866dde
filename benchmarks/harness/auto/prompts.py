"""Requests that put a method to the test: without any pattern, and of both kinds at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from outpace import SamplingParams
from outpace.measure.prompts import BenchPrompt, Question, pick_questions
from outpace.models.tokenizer import Tokenizer

MIXED = Path(__file__).parents[2] / "mixed.jsonl"
NUM_WORDS = 40
COPYING, HARD = "copying", "hard"
NUM_EACH = 4
HARD_TEMPERATURE = 1.0
_NUM_TRIED = 4096


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that are decoded together. part: of the benchmark, for which it is."""

    part: str
    label: str
    decoding: str
    prompts: tuple[BenchPrompt, ...]
    params: tuple[SamplingParams, ...]

    @property
    def num_tokens(self) -> int:
        return sum(params.max_tokens or 0 for params in self.params)


def random_words(tokenizer: Tokenizer, count: int, seed: int) -> list[BenchPrompt]:
    """Prompts of words that have nothing to do with each other."""
    rng = random.Random(f"{seed}words")
    ids = range(len(tokenizer.vocab()))
    texts = [tokenizer.token_text(i) for i in rng.sample(ids, min(_NUM_TRIED, len(ids)))]
    words = sorted({text.strip() for text in texts if text.strip().isalpha()})
    return [
        Question.from_user(
            f"random words {number}", "random words", " ".join(rng.choices(words, k=NUM_WORDS))
        ).prompt(tokenizer)
        for number in range(count)
    ]


def mixed_groups(tokenizer: Tokenizer, count: int, max_tokens: int, seed: int) -> list[Group]:
    """Batches of four requests to copy a text, greedy, and four for something new, sampled.

    All go on to `max_tokens`, past the model's end token: so every method has the same work, and
    the copying ones, which are sooner done with it, leave the others alone.
    """
    questions = pick_questions([MIXED], tokenizer, per_category=10**6, max_tokens=10**6, seed=seed)
    rng = random.Random(f"{seed}mixed")
    params = {
        COPYING: SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        HARD: SamplingParams(temperature=HARD_TEMPERATURE, max_tokens=max_tokens, ignore_eos=True),
    }
    groups = []
    for number in range(count):
        picked = [
            question
            for kind in (COPYING, HARD)
            for question in rng.sample([q for q in questions if q.category == kind], NUM_EACH)
        ]
        rng.shuffle(picked)
        groups.append(
            Group(
                "mixed",
                f"mixed {number}",
                "mixed",
                tuple(question.prompt(tokenizer) for question in picked),
                tuple(params[question.category] for question in picked),
            )
        )
    return groups


def sized_groups(
    prompts: Sequence[BenchPrompt],
    size: int,
    count: int,
    decoding: str,
    params: SamplingParams,
    seed: int,
) -> list[Group]:
    """Batches of so many prompts, of all categories alike; prompts come again where there are too
    few."""
    rng = random.Random(f"{seed}batches")
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in rng.sample(list(prompts), len(prompts)):
        by_category.setdefault(prompt.category, []).append(prompt)
    # One of every category after another.
    in_turn = [p for row in zip_longest(*by_category.values()) for p in row if p is not None]
    groups = []
    for number in range(count):
        chosen = [in_turn[(number * size + i) % len(in_turn)] for i in range(size)]
        label = f"{size} requests, {number}"
        groups.append(Group("batch", label, decoding, tuple(chosen), (params,) * size))
    return groups
