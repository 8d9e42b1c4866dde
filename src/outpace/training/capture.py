"""Running answers through the target once more, to keep what its layers said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

import numpy as np

from outpace.errors import OptionError
from outpace.params import SamplingParams
from outpace.runner import Runner
from outpace.training.answers import Answer
from outpace.training.store import Entry, FeatureStore, bfloat16_bits
from outpace.types import Sequence

TOKENS_PER_PASS = 512
FLUSH_EVERY = 64
"""Passes between two syncs to disk."""

Bits = np.ndarray[Any, Any]


def held_out_share(num_answers: int, share: float = 0.03, least: int = 8, most: int = 200) -> float:
    """Share of the answers to keep out of training, so that there are about `least` to `most`, but
    never more than a quarter of all."""
    wanted = min(max(share * num_answers, least), most)
    return min(wanted / max(num_answers, 1), 0.25)


@dataclass(frozen=True, slots=True)
class _Text:
    """What is fed of an answer: prompt and answer, cut to the longest allowed."""

    answer: Answer
    key: str
    token_ids: list[int]


def capture_features(
    answers: Iterable[Answer],
    runner: Runner,
    store: FeatureStore,
    *,
    held_out_share: float,
    max_tokens: int,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    """Add the features of all answers that the store does not hold yet.

    runner: the target; its cache needs rows for a few sequences of `max_tokens` each.
    max_tokens: longer sequences are cut there; one whose prompt alone is that long is left out.
    progress: called with (tokens there are, tokens wanted).

    Which answers share a pass depends on the answers alone, so that an interrupted run ends with
    the same features as an uninterrupted one, where they depend on that at all. Raises OptionError
    before the first pass if the disk has no room for them, or the cache for `max_tokens`.
    """
    if max_tokens > runner.max_len:
        raise OptionError(
            f"sequences of up to {max_tokens} tokens do not fit in a cache of {runner.max_len}"
        )
    texts = list(_texts(answers, max_tokens))
    known = store.keys
    total = sum(len(text.token_ids) for text in texts)
    done = sum(len(text.token_ids) for text in texts if text.key in known)
    store.check_space(total - done)
    progress(done, total)
    for number, group in enumerate(_groups(texts, runner.cache.num_free_rows), 1):
        new = [text for text in group if text.key not in known]
        if not new:
            continue
        for text, features in _features(group, runner, store.capture):
            if text.key not in known:
                store.append(text.token_ids, features, _entry(text, held_out_share))
        done += sum(len(text.token_ids) for text in new)
        if number % FLUSH_EVERY == 0:
            store.flush()
        progress(done, total)
    store.flush()


def _texts(answers: Iterable[Answer], max_tokens: int) -> Iterator[_Text]:
    """Of every answer once, where anything of it is left beside its prompt."""
    seen = set()
    for answer in answers:
        token_ids = [*answer.prompt_token_ids, *answer.answer_token_ids][:max_tokens]
        key = answer.key
        if len(token_ids) > len(answer.prompt_token_ids) and key not in seen:
            seen.add(key)
            yield _Text(answer, key, token_ids)


def _groups(texts: List[_Text], most: int) -> Iterator[list[_Text]]:
    """Texts that are fed together: about `TOKENS_PER_PASS` tokens, at most `most` of them."""
    group: list[_Text] = []
    size = 0
    for text in texts:
        length = len(text.token_ids)
        if group and (size + length > TOKENS_PER_PASS or len(group) == most):
            yield group
            group, size = [], 0
        group.append(text)
        size += length
    if group:
        yield group


def _features(
    group: List[_Text], runner: Runner, capture: tuple[int, ...]
) -> Iterator[tuple[_Text, dict[int, Bits]]]:
    """bfloat16 bits after each captured layer, [tokens, hidden], of each text."""
    # A runner gives logits after the newest token, and no pass here reaches it: one that is never
    # fed stands behind each text.
    seqs = [
        Sequence(i, [*text.token_ids, 0], len(text.token_ids) + 1, SamplingParams())
        for i, text in enumerate(group)
    ]
    parts: list[dict[int, list[Bits]]] = [{layer: [] for layer in capture} for _ in group]
    for seq in seqs:
        runner.open(seq, reuse=False)
    try:
        while behind := [i for i, s in enumerate(seqs) if runner.num_cached(s) < s.num_prompt - 1]:
            left = [
                min(TOKENS_PER_PASS, seqs[i].num_prompt - 1 - runner.num_cached(seqs[i]))
                for i in behind
            ]
            scores = runner.extend([seqs[i] for i in behind], max_feed=left, capture=capture)
            for i, fed in zip(behind, scores.fed, strict=True):
                for layer in capture:
                    parts[i][layer].append(bfloat16_bits(scores.hidden[layer][fed]))
    finally:
        for seq in seqs:
            runner.release(seq)
    for text, layers in zip(group, parts, strict=True):
        yield text, {layer: np.concatenate(chunks) for layer, chunks in layers.items()}


def _entry(text: _Text, held_out_share: float) -> Entry:
    answer = text.answer
    return Entry(
        num_prompt=len(answer.prompt_token_ids),
        num_tokens=len(text.token_ids),
        source=answer.source,
        temperature=answer.temperature,
        held_out=answer.is_held_out(held_out_share),
        key=text.key,
    )
