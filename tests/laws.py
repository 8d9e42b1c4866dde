"""The law of the first two tokens of a tiny target, counted and computed: for chi-square tests."""

from __future__ import annotations

import numpy as np
from scipy.stats import chisquare
from tiny import fresh_logits, tiny_model

from outpace import LLM, SamplingParams
from outpace.sampling import History, probabilities
from outpace.types import Sequence

# Small enough for every two-token outcome to be seen often.
SMALL_VOCAB = 8
SMALL = tiny_model(vocab_size=SMALL_VOCAB, seed=3, scale=0.5)
SMALL_DRAFT = tiny_model(vocab_size=SMALL_VOCAB, seed=4, num_layers=1, scale=0.5)
PROMPT = [2, 3, 4, 2, 3, 4, 2, 3]


def pair_counts(llm: LLM, params: SamplingParams, num_requests: int) -> np.ndarray:
    """How often each pair of first two output tokens came, [V, V]."""
    counts = np.zeros((SMALL_VOCAB, SMALL_VOCAB), dtype=int)
    for result in llm.generate([{"prompt_token_ids": PROMPT}] * num_requests, params):
        first, second = result.outputs[0].token_ids[:2]
        counts[first, second] += 1
    return counts


def pair_law(
    params: SamplingParams,
    end_token_ids: frozenset[int] = frozenset(),
    bad_words_ids: tuple[tuple[int, ...], ...] = (),
) -> np.ndarray:
    """The target's law of the first two output tokens, [V, V]."""

    def law(tokens: list[int]) -> np.ndarray:
        seq = Sequence(0, tokens, len(PROMPT), params, end_token_ids, bad_words_ids=bad_words_ids)
        return probabilities(fresh_logits(SMALL, tokens).numpy(), History(seq))

    first = law(PROMPT)
    pairs = np.zeros((SMALL_VOCAB, SMALL_VOCAB))
    for token in np.flatnonzero(first):
        pairs[token] = first[token] * law([*PROMPT, int(token)])
    return pairs


def chi_square_p(counts: np.ndarray, law: np.ndarray) -> float:
    possible = law > 0
    assert not counts[~possible].any(), "a token came that the parameters forbid"
    expected = law[possible] / law[possible].sum() * counts.sum()
    observed = counts[possible].astype(float)
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(chisquare(observed, expected).pvalue)
