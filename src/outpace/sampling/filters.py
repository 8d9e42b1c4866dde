"""Temperature and the filters that keep only some tokens: from logits to a distribution.

Everything works on one row in numpy: on a large vocabulary its comparisons, selections and sorts
take a fraction of torch's time, and a row's result cannot depend on the rows beside it. A filter
hands on only the tokens it kept, so that those after it touch few.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from outpace.errors import ModelError, OptionError
from outpace.params import SamplingParams

_LIMITS = {np.dtype(kind): np.finfo(kind) for kind in (np.float32, np.float64)}
_COLUMN = 64
_FIRST_SEARCH = 64

Values = Float[np.ndarray, " m"]
Kept = Int[np.ndarray, " kept"]


def distribution(logits: Float[np.ndarray, " V"], asked: SamplingParams) -> Float[np.ndarray, " V"]:
    """The distribution that temperature and filters make of a row of logits, [V].

    Logits of -inf are allowed as long as one token is left; `logits` is not changed.
    Raises OptionError where none is left, and ModelError for NaN and +inf.
    """
    best = best_token(logits)
    if asked.is_greedy:
        one_hot: Float[np.ndarray, " V"] = np.zeros_like(logits)
        one_hot[best] = 1
        return one_hot
    values: Values = logits - logits[best]
    if asked.temperature != 1.0:
        # The maximum is 0, so nothing overflows upwards; downwards it may, to a probability of 0.
        with np.errstate(over="ignore"):
            values /= np.clip(
                asked.temperature, _LIMITS[values.dtype].tiny, _LIMITS[values.dtype].max
            )
    ids: Kept | None = None
    for filters, convert in ((_BY_RANK, _exp_in_place), (_BY_MASS, _normalise)):
        for keep in filters:
            kept = keep(values, asked)
            if kept is not None:
                values = values[kept]
                ids = kept if ids is None else ids[kept]
        convert(values)
    if ids is None:
        return values
    p: Float[np.ndarray, " V"] = np.zeros_like(logits)
    p[ids] = values
    return p


def best_token(logits: Float[np.ndarray, " V"]) -> int:
    """The most probable token, the smallest id of several. Raises as `distribution` does."""
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        raise no_token(float(logits[best]))
    return best


def no_token(highest: float) -> ModelError | OptionError:
    """Why no token can be chosen from a row whose highest logit is `highest`."""
    if highest == -math.inf:
        return OptionError(
            "no token is left to generate: logit_bias, allowed_token_ids, bad_words, min_tokens, "
            "structured_outputs or a logits processor forbid every one; loosen them"
        )
    return ModelError(
        "the model computed logits that are NaN or infinite; its weights are damaged, or they "
        "overflow in this dtype (try float32)"
    )


# A filter takes a row [m] and returns the indices to keep in ascending order, or None to keep all.
# Filters by rank see scaled logits, whose maximum is 0; filters by mass see weights, whose maximum
# is 1, of what those before them left.


def _min_p(values: Values, asked: SamplingParams) -> Kept | None:
    """Tokens at least min_p times as probable as the most probable one (whose logit is 0)."""
    if asked.min_p == 0.0:
        return None
    return np.flatnonzero(values >= math.log(asked.min_p))


def _top_k(values: Values, asked: SamplingParams) -> Kept | None:
    """Exactly the k most probable tokens."""
    if not 0 < asked.top_k < values.size:
        return None
    return np.sort(descending(values, asked.top_k)[: asked.top_k])


def _top_p(weights: Values, asked: SamplingParams) -> Kept | None:
    """The smallest set of most probable tokens whose mass reaches top_p.

    A token stays if the mass before it, in descending order, is below top_p: the token that
    crosses the line stays, and so does always the first.
    """
    if asked.top_p == 1.0:
        return None
    return _smallest_set(weights, weights, asked.top_p)


def _typical_p(weights: Values, asked: SamplingParams) -> Kept | None:
    """Locally typical tokens (Meister et al. 2202.00666): in order of how little their surprisal
    -log p differs from the entropy, the smallest set whose mass reaches typical_p."""
    if asked.typical_p == 1.0:
        return None
    p = weights / weights.sum()
    with np.errstate(divide="ignore"):
        surprisal = -np.log(p)
    # 0 * inf: a forbidden token adds nothing to the entropy.
    terms = np.multiply(p, surprisal, out=np.zeros_like(p), where=p > 0)
    return _smallest_set(weights, -np.abs(surprisal - terms.sum()), asked.typical_p)


_Filters = tuple[Callable[[np.ndarray, SamplingParams], np.ndarray | None], ...]
_BY_RANK: _Filters = (_min_p, _top_k)
_BY_MASS: _Filters = (_top_p, _typical_p)


def _exp_in_place(values: Values) -> None:
    # torch's is three times as fast where cores are free; where they are not its threads, started
    # even for small rows, wait for one another for milliseconds.
    np.exp(values, out=values)


def _normalise(weights: Values) -> None:
    weights *= 1 / weights.sum()


def _smallest_set(weights: Values, scores: Values, share: float) -> Kept:
    """Indices of the smallest set, in descending order of score, that holds `share` of the weight.

    Equal scores go by index. Only as many tokens are sorted as are needed, which is few.
    """
    wanted = share * float(weights.sum())
    size = _FIRST_SEARCH
    while True:
        order = descending(scores, size)
        mass = np.cumsum(weights[order], dtype=np.float64)
        # Rounding of the sum may leave even all of them short.
        if mass[-1] >= wanted or order.size == weights.size:
            return np.sort(order[: 1 + int(np.searchsorted(mass[:-1], wanted))])
        size *= 8


def descending(values: Values, size: int) -> Kept:
    """Indices of the highest values in descending order: `size` of them at least, or all.

    Equal values go by index, and are all there or all missing.
    """
    num_columns = values.size // _COLUMN
    if num_columns <= size:
        return np.argsort(-values, kind="stable")
    # Columns, because numpy compares whole rows at once. At least `size` values reach the `size`-th
    # highest of the columns' maxima, and not many more: only those are sorted.
    body, rest = values[: num_columns * _COLUMN], values[num_columns * _COLUMN :]
    body = body.reshape(_COLUMN, num_columns)
    maxima = body.max(axis=0)
    line = np.partition(maxima, num_columns - size)[num_columns - size]
    columns = np.flatnonzero(maxima >= line)
    row, column = np.nonzero(body[:, columns] >= line)
    found = np.concatenate(
        [row * num_columns + columns[column], body.size + np.flatnonzero(rest >= line)]
    )
    return found[np.argsort(-values[found], kind="stable")]
