"""Verification of a chain of draft tokens: token by token, or as a block.

Both rules emit tokens whose joint law is exactly the target's. With p_i, q_i the target's and the
draft's distributions at draft position i = 1..k, given the draft tokens x_1..x_{i-1} before it:

Token verification (Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318, algorithm 2):

    accept x_i while u_i < min(1, p_i(x_i) / q_i(x_i));  at the first rejection, n = i - 1
    emit x_1..x_n, then y ~ max(p_{n+1} - q_{n+1}, 0), normalised; if n = k, y ~ p_{k+1}

Block verification (Sun et al. 2403.10444):

    P_0 = 1;  P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i))
    Z_i = sum_y max(P_i p_{i+1}(y) - q_{i+1}(y), 0);  h_i = Z_i / (Z_i + 1 - P_i);
    h_k = P_k; 0/0 = 1
    n = the LARGEST i with u_i < h_i, else 0
    emit x_1..x_n, then y ~ max(P_n p_{n+1} - q_{n+1}, 0), normalised; if n = k, y ~ p_{k+1}

Everything here is pure: probabilities, a draft and coins in, a decision out. Rows are float32 or
float64 arrays, or object arrays of `fractions.Fraction`; with the latter the same code computes
exactly, and that is how the tests prove both rules. There is no epsilon anywhere. Zero mass is
guarded where it can occur: q(x) = 0 rejects, and a residual without mass (p = q up to rounding)
falls back to p. Rows are compared by token id: an id outside a row has probability 0 there, so a
padded or smaller draft vocabulary needs no care from the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Shaped

from outpace.sampling import Number, draw
from outpace.types import Draft, Verdict

Row = Shaped[np.ndarray, " V"]
DraftRow = Shaped[np.ndarray, " V_draft"]
Coins = Sequence[Number] | np.ndarray


@runtime_checkable
class Rows(Protocol):
    """One row of probabilities per position: an array [rows, V], or rows made when asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Row: ...


@dataclass(frozen=True, slots=True)
class Decision:
    """What the coins decided, before the last token is drawn.

    num_accepted: how many draft tokens stay. weights: the law of the token after them [V], not
    normalised; may be a row of the caller's p, so it must not be written to.
    """

    num_accepted: int
    weights: Row


def token_verify(p: Rows, draft: Draft, coins: Coins, final_coin: Number) -> Verdict:
    """Verify a draft of k tokens by token verification (see the module's equations).

    p: target probabilities [k+1, V], one row per draft position and one after the last.
    coins: k independent uniforms in [0, 1). final_coin: one more, for the recovered or bonus token.
    """
    return _verdict(draft, token_decision(p, draft, coins), final_coin)


def block_verify(p: Rows, draft: Draft, coins: Coins, final_coin: Number) -> Verdict:
    """Verify a draft of k tokens by block verification; arguments as for `token_verify`.

    Never accepts fewer tokens than token verification in expectation (with the same coins it may);
    for one-hot q, and for k = 1, the two rules are the same.
    """
    return _verdict(draft, block_decision(p, draft, coins), final_coin)


def _verdict(draft: Draft, decision: Decision, final_coin: Number) -> Verdict:
    accepted = draft.token_ids[: decision.num_accepted]
    return Verdict((*accepted, draw(decision.weights, final_coin)), decision.num_accepted)


def token_decision(p: Rows, draft: Draft, coins: Coins) -> Decision:
    """How many draft tokens token verification accepts, and the law of the next token."""
    _check(p, draft, coins)
    for i, token in enumerate(draft.token_ids):
        if not coins[i] < path_weight(1, p[i], token, draft.q_at(i)):
            return Decision(i, _final_weights(p, draft, i, 1))
    return Decision(len(draft), p[len(draft)])


def token_thresholds(p: Rows, draft: Draft) -> list[Number]:
    """For each draft position the probability min(1, p/q) that token verification accepts it."""
    return [path_weight(1, p[i], token, draft.q_at(i)) for i, token in enumerate(draft.token_ids)]


def block_decision(p: Rows, draft: Draft, coins: Coins) -> Decision:
    """How many draft tokens block verification accepts, and the law of the next token."""
    _check(p, draft, coins)
    weights = path_weights(p, draft)
    for i in range(len(draft), 0, -1):
        if coins[i - 1] < _block_threshold(p, draft, i, weights[i - 1]):
            return Decision(i, _final_weights(p, draft, i, weights[i - 1]))
    return Decision(0, _final_weights(p, draft, 0, 1))


def block_thresholds(p: Rows, draft: Draft) -> tuple[list[Number], list[Number]]:
    """The path weights P_1..P_k and the acceptance thresholds h_1..h_k of block verification."""
    weights = path_weights(p, draft)
    thresholds = [_block_threshold(p, draft, i, weight) for i, weight in enumerate(weights, 1)]
    return weights, thresholds


def path_weights(p: Rows, draft: Draft) -> list[Number]:
    """P_1..P_k of block verification: P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i))."""
    weights: list[Number] = []
    for i, token in enumerate(draft.token_ids):
        before = weights[-1] if weights else 1
        weights.append(path_weight(before, p[i], token, draft.q_at(i)))
    return weights


def residual(p_row: Row, token: int, q_row: DraftRow | None, weight: Number = 1) -> Row:
    """max(weight * p - q, 0) by token id, [V], not normalised; a new array.

    q_row: the draft's distribution, of any width, or None for one-hot at `token`.
    weight: 1 in token verification, the path weight P_n in block verification.
    """
    scaled = p_row * weight if weight != 1 else p_row
    if q_row is None:
        remaining = scaled.copy() if scaled is p_row else scaled
        if 0 <= token < remaining.size:
            remaining[token] = 0
        return remaining
    if q_row.size != p_row.size:
        resized = np.zeros(p_row.size, dtype=q_row.dtype)
        common = min(p_row.size, q_row.size)
        resized[:common] = q_row[:common]
        q_row = resized
    remaining = scaled - q_row
    return np.maximum(remaining, 0, out=remaining)


def _final_weights(p: Rows, draft: Draft, num_accepted: int, weight: Number) -> Row:
    """The law of the token after `num_accepted` accepted ones: bonus, or recovered."""
    p_row = p[num_accepted]
    if num_accepted == len(draft):
        return p_row
    token, q_row = draft.token_ids[num_accepted], draft.q_at(num_accepted)
    remaining = residual(p_row, token, q_row, weight)
    # Also false for NaN, so a malformed q can never lead to an id outside the vocabulary.
    return remaining if remaining.max() > 0 else p_row


def path_weight(before: Number, p_row: Row, token: int, q_row: DraftRow | None) -> Number:
    """min(1, before * p(token) / q(token)), and 0 where q(token) is not positive."""
    target = before * probability(p_row, token)
    drafted = 1 if q_row is None else probability(q_row, token)
    if not drafted > 0:
        return 0
    return 1 if target >= drafted else target / drafted


def _block_threshold(p: Rows, draft: Draft, i: int, weight: Number) -> Number:
    """h_i of block verification, for i = 1..k."""
    if i == len(draft) or weight == 0 or weight == 1:
        return weight
    token, q_row = draft.token_ids[i], draft.q_at(i)
    if q_row is None:
        return weight_after_rejection(weight, weight * max(1 - probability(p[i], token), 0))
    return weight_after_rejection(weight, mass(residual(p[i], token, q_row, weight)))


def weight_after_rejection(weight: Number, remaining_mass: Number) -> Number:
    """Z / (Z + 1 - P), and 0/0 = 1: the weight of a path when what was drawn after it is rejected.

    weight: P, in [0, 1]. remaining_mass: Z, the sum of max(P p - q, 0).
    """
    return 1 if weight == 1 else remaining_mass / (remaining_mass + (1 - weight))


def mass(weights: Row) -> Number:
    """The sum of a row, in float64 whatever the row is, or exact."""
    if weights.dtype == object:
        exact: Number = weights.sum()
        return exact
    return float(weights.sum(dtype=np.float64))


def probability(row: Shaped[np.ndarray, " V_any"], token: int) -> Number:
    value: Number = row.item(token) if 0 <= token < row.size else 0
    return value


def _check(p: Rows, draft: Draft, coins: Coins) -> None:
    k = len(draft)
    assert len(p) == k + 1, f"{k} draft tokens need {k + 1} rows, got {len(p)}"
    assert len(coins) == k, f"{k} draft tokens need {k} coins, got {len(coins)}"
