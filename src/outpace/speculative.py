"""One step of speculative decoding over plain functions: for learners and for experiments.

The engine runs the same verification code; here nothing is cached, batched or streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from outpace.errors import OptionError
from outpace.sampling import draw
from outpace.types import Draft
from outpace.verification.chain import block_verify, token_verify

_RULES = {"token": token_verify, "block": block_verify}
# A float32 softmax over a large vocabulary sums to 1 within about 1e-5.
_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class SpeculativeStep:
    """What one step did.

    token_ids: the new tokens, 1 to k + 1 of them: the accepted draft tokens, then one token of
        the target's own (recovered after a rejection, bonus if the whole draft was accepted).
    num_accepted: how many of them are accepted draft tokens.
    draft_token_ids: all k tokens that were drafted.
    """

    token_ids: tuple[int, ...]
    num_accepted: int
    draft_token_ids: tuple[int, ...]


def speculative_step(
    target_fn: Callable[[list[int]], Any],
    draft_fn: Callable[[list[int]], Any],
    ids: Sequence[int],
    k: int,
    *,
    rng: np.random.Generator | None = None,
    rule: Literal["token", "block"] = "block",
) -> SpeculativeStep:
    """Draft k tokens with `draft_fn`, verify them with one call of `target_fn`.

    The new tokens, continued by further steps or by the target alone, have exactly the law of
    sampling from the target token by token, whatever the drafter does.

    target_fn: takes n token ids and returns probabilities [n, V], row i for the token after
        ids[: i + 1], as the softmax of a causal language model does. Called once, with
        `ids` and the draft; it must take every id that `draft_fn` can propose.
    draft_fn: takes token ids and returns the probabilities of the next token, [V] or [n, V] (the
        last row counts), from which a token is drawn; or it returns a token id (an int). A token
        that is chosen without drawing is judged as such: its q is one-hot.
    ids: the context, at least one token id.
    k: number of draft tokens; 0 samples one token from the target.
    rng: source of randomness (None: a fresh one).
    rule: "block" (Sun et al. 2403.10444) accepts at least as many tokens on average as "token"
        (Leviathan et al. 2211.17192, Chen et al. 2302.01318).

    Probabilities may be anything numpy reads as an array: lists, arrays, CPU tensors. The two
    vocabularies are compared by token id and may differ in width.

    Raises OptionError for ids, k, rule or probabilities that are not as described.

    A target and a drafter over three tokens, each looking at the last token only:

    >>> import numpy as np
    >>> P = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.3, 0.3, 0.4]])
    >>> Q = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.1, 0.6, 0.3]])
    >>> rng = np.random.default_rng(0)
    >>> ids = [0]
    >>> while len(ids) < 12:
    ...     step = speculative_step(lambda ids: P[ids], lambda ids: Q[ids], ids, k=3, rng=rng)
    ...     ids.extend(step.token_ids)
    ...     print(step.draft_token_ids, "->", step.token_ids)
    (1, 0, 0) -> (1, 0, 1)
    (1, 1, 2) -> (0,)
    (2, 1, 2) -> (2, 1, 2, 0)
    (0, 1, 1) -> (1,)
    (1, 1, 1) -> (2,)
    (1, 1, 2) -> (0,)
    """
    context = _checked_ids(ids)
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise OptionError(f"k must be a whole number of at least 0, got {k!r}")
    if rule not in _RULES:
        raise OptionError(f"rule must be 'token' or 'block', got {rule!r}")
    rng = np.random.default_rng() if rng is None else rng
    draft = _draft(draft_fn, context, k, rng)
    p = _checked_rows("target_fn", target_fn([*context, *draft.token_ids]))
    num_fed = len(context) + k
    if p.ndim != 2 or p.shape[0] != num_fed:
        raise OptionError(
            f"target_fn was given {num_fed} ids and must return one row of probabilities for"
            f" each, shape ({num_fed}, V); it returned shape {p.shape}"
        )
    verdict = _RULES[rule](p[-(k + 1) :], draft, rng.random(k), rng.random())
    return SpeculativeStep(verdict.token_ids, verdict.num_accepted, draft.token_ids)


def _draft(
    draft_fn: Callable[[list[int]], Any], context: list[int], k: int, rng: np.random.Generator
) -> Draft:
    tokens: list[int] = []
    q: list[np.ndarray | None] = []
    for _ in range(k):
        proposal = draft_fn([*context, *tokens])
        if isinstance(proposal, int | np.integer):
            tokens.append(_checked_ids([proposal], "draft_fn must return token ids")[0])
            q.append(None)
            continue
        rows = _checked_rows("draft_fn", proposal)
        q_row = rows if rows.ndim == 1 else rows[-1]
        tokens.append(draw(q_row, rng.random()))
        q.append(q_row)
    return Draft(tuple(tokens), tuple(q))


def _checked_ids(ids: Sequence[int | np.integer], what: str = "ids must be token ids") -> list[int]:
    checked = []
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int | np.integer) or token < 0:
            raise OptionError(f"{what} (whole numbers of at least 0), got {token!r}")
        checked.append(int(token))
    if not checked:
        raise OptionError("ids must hold at least one token id: the target needs a context")
    return checked


def _checked_rows(name: str, values: Any) -> Shaped[np.ndarray, "*n V"]:
    rows = np.asarray(values)
    if rows.dtype != object and not np.issubdtype(rows.dtype, np.floating):
        rows = rows.astype(np.float64)
    if rows.ndim not in (1, 2) or rows.size == 0:
        raise OptionError(
            f"{name} must return probabilities of shape (V,) or (n, V), got shape {rows.shape}"
        )
    if not (rows >= 0).all():
        raise OptionError(f"{name} returned negative or NaN values; softmax the logits first")
    sums = rows.sum(axis=-1, dtype=None if rows.dtype == object else np.float64)
    off = np.abs(sums - 1)
    if not (off <= _SUM_TOLERANCE).all():
        worst = float(np.ravel(sums)[int(np.argmax(off))])
        raise OptionError(
            f"{name} returned a row that sums to {worst:.6g}; probabilities must sum to 1"
        )
    return rows
