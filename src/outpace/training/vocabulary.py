"""The draft vocabulary: the part of the target's that a draft can propose."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List

import numpy as np
from jaxtyping import Float64, Int64

from outpace.errors import OptionError

PROMPT_WEIGHT = 0.3
"""What a token of a prompt counts beside one of an answer: answers take words up."""
PRIOR, PRIOR_OFFSET = 0.001, 300
"""Tokenizers number their merges by frequency: id i is taken to be PRIOR / (i + PRIOR_OFFSET) of
the text, which ranks the tokens that were hardly seen."""


def count_tokens(texts: Iterable[List[int]], vocab_size: int) -> Int64[np.ndarray, " V"]:
    """How often each token occurs."""
    counts = np.zeros(vocab_size, np.int64)
    for token_ids in texts:
        counts += np.bincount(np.asarray(token_ids, np.int64), minlength=vocab_size)
    return counts


def choose_draft_vocabulary(
    answer_counts: Int64[np.ndarray, " V"], prompt_counts: Int64[np.ndarray, " V"], size: int
) -> Int64[np.ndarray, " Vd"]:
    """The `size` target ids that score best, ascending; the smaller id among equals.

    Score: share of the answers' tokens + 0.3 share of the prompts' + a prior for low ids. Raises
    OptionError for a size that the target's vocabulary does not have.
    """
    vocab_size = len(answer_counts)
    if not 1 <= size <= vocab_size:
        raise OptionError(
            f"a draft vocabulary has from 1 to {vocab_size} tokens, all of the target's; got {size}"
        )
    prior = PRIOR / (np.arange(vocab_size) + PRIOR_OFFSET)
    score = _share(answer_counts) + PROMPT_WEIGHT * _share(prompt_counts) + prior
    best = np.argsort(-score, kind="stable")[:size]
    return np.sort(best)


def coverage(counts: Int64[np.ndarray, " V"], draft_token_ids: Int64[np.ndarray, " Vd"]) -> float:
    """Which share of counted tokens the draft vocabulary holds: a bound on acceptance."""
    total = int(counts.sum())
    return float(counts[draft_token_ids].sum() / total) if total else 0.0


def _share(counts: Int64[np.ndarray, " V"]) -> Float64[np.ndarray, " V"]:
    return counts / max(int(counts.sum()), 1)
