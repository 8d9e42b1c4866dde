"""Sample-and-match verification, and the counter-based noise of seeded requests.

The target's own token is chosen at every position; draft tokens stay as long as they equal it.
The output is the target's choice whatever was drafted, so it does not depend on the drafter, on
the draft's length or on other requests. Greedy requests choose by argmax; seeded requests choose
by `choose`, whose noise is a pure function of (seed, choice index, output position, token id).
Never mix these choices with the coins of `chain`: a request uses one or the other throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int, UInt64

from outpace.types import Draft, Verdict

_MASK = 2**64 - 1
# Increment and multipliers of SplitMix64 (Steele, Lea and Flood 2014).
_STEP = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB
_BLOCK = 8192
"""Tokens whose noise is made at a time: the arrays of one block stay in a core's cache."""


def match(draft_token_ids: Sequence[int], chosen_ids: Sequence[int]) -> Verdict:
    """Keep draft tokens while they equal the target's choice; emit the choice that ends the run.

    chosen_ids: k+1 ids; the i-th was chosen from the target's distribution given the draft tokens
    before it, so it means something only if all of those were accepted.
    """
    assert len(chosen_ids) == len(draft_token_ids) + 1, "one choice more than draft tokens"
    num_accepted = 0
    while (
        num_accepted < len(draft_token_ids)
        and draft_token_ids[num_accepted] == chosen_ids[num_accepted]
    ):
        num_accepted += 1
    return Verdict(tuple(chosen_ids[: num_accepted + 1]), num_accepted)


def walk(draft: Draft, chosen_at: Callable[[int], int | None]) -> Verdict:
    """`match` over a tree: follow the target's choices from the newest committed token.

    chosen_at(row): the target's choice after the newest committed token (row 0) or after node
        row - 1; None where no token may come, which ends the verdict with the accepted tokens
        alone. Asked for the nodes reached only.
    Siblings with the same token are followed together, so candidates need not be merged.
    """
    children, token_ids = draft.children(), draft.token_ids
    chosen: list[int] = []
    accepted, reached = -1, [-1]
    while reached:
        accepted = reached[0]
        choice = chosen_at(accepted + 1)
        if choice is None:
            break
        chosen.append(choice)
        reached = [c for node in reached for c in children[node + 1] if token_ids[c] == choice]
    nodes = tuple(draft.path(accepted))
    return Verdict(tuple(chosen), len(nodes), nodes=nodes)


def choose(p_row: Float[np.ndarray, " V"], seed: int, choice: int, position: int) -> int:
    """Draw a token from `p_row` with noise keyed by (seed, choice, position, token id).

    An exponential race: the token with the smallest E(t) / p(t) wins, E(t) independent and
    exponentially distributed, which happens with probability p(t). Because a token's noise does
    not depend on the other tokens or on p, similar rows mostly choose alike: a drafter that
    chooses with the same noise agrees more often than independent draws would.

    p_row: probabilities or unnormalised weights [V]; tokens without mass are never chosen.
    choice: index of the answer among a request's n. position: index of the output token.
    """
    token_ids = np.flatnonzero(p_row > 0)
    if token_ids.size == 1:
        return int(token_ids[0])
    assert token_ids.size, "there is no mass to draw from"
    return int(_first_arrivals(p_row, token_ids, noise_key(seed, choice, position), 1)[0])


def arrivals(
    p_row: Float[np.ndarray, " V"], seed: int, choice: int, position: int, count: int
) -> list[int]:
    """The first `count` tokens to arrive in the race of `choose`, which returns the first of them.

    In order of arrival, which has the law of draws without replacement; fewer where fewer tokens
    have mass.
    """
    token_ids = np.flatnonzero(p_row > 0)
    first: list[int] = _first_arrivals(
        p_row, token_ids, noise_key(seed, choice, position), count
    ).tolist()
    return first


def _first_arrivals(
    p_row: Float[np.ndarray, " V"], token_ids: Int[np.ndarray, " n"], key: int, count: int
) -> Int[np.ndarray, " first"]:
    """Those `count` of `token_ids` (all with mass) whose E(t) / p(t) is smallest, in order."""
    first, times = token_ids[:0], np.empty(0)
    for start in range(0, token_ids.size, _BLOCK):
        ids = token_ids[start : start + _BLOCK]
        weights = p_row[ids].astype(np.float64)
        uniform = _uniform(ids.astype(np.uint64), key)
        # -log(1 - u) >= u, so u / p bounds a token's arrival from below and only the few tokens
        # whose bound does not exceed the last of `count` arrivals known need a logarithm.
        bound = uniform / weights
        best = bound.argmin()
        if times.size == count and bound[best] > times[-1]:
            continue
        likely = np.atleast_1d(best)
        if count > 1:
            likely = np.argpartition(bound, min(count, bound.size) - 1)[:count]
        known = np.concatenate([times, -np.log1p(-uniform[likely]) / weights[likely]])
        limit = np.sort(known)[count - 1] if known.size >= count else np.inf
        finalists = np.flatnonzero(bound <= limit)
        times = np.concatenate([times, -np.log1p(-uniform[finalists]) / weights[finalists]])
        order = np.argsort(times, kind="stable")[:count]
        first, times = np.concatenate([first, ids[finalists]])[order], times[order]
    return first


def noise_key(seed: int, choice: int, position: int) -> int:
    """The key, 64 bits, from which the noise of one output position is made."""
    key = 0
    for part in (seed, choice, position):
        key = _mix(key + _STEP * (part + 1))
    return key


def _mix(value: int) -> int:
    """The output function of SplitMix64 on a Python integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FIRST_FACTOR) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND_FACTOR) & _MASK
    return value ^ (value >> 31)


def _uniform(counters: UInt64[np.ndarray, " n"], key: int) -> Float[np.ndarray, " n"]:
    """Uniforms strictly inside (0, 1), one per counter: SplitMix64 started at `key`.

    Overwrites `counters`. The top 52 bits plus one half, so that neither 0 nor 1 can occur.
    """
    bits, shifted = counters, np.empty_like(counters)
    bits *= np.uint64(_STEP)
    bits += np.uint64((key + _STEP) & _MASK)
    for shift, factor in ((30, _FIRST_FACTOR), (27, _SECOND_FACTOR)):
        bits ^= np.right_shift(bits, np.uint64(shift), out=shifted)
        bits *= np.uint64(factor)
    bits ^= np.right_shift(bits, np.uint64(31), out=shifted)
    bits >>= np.uint64(12)
    uniform = bits.view(np.int64).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-52
    return uniform
