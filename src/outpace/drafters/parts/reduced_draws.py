"""Draft tokens from logits over a draft vocabulary, under the requests' own parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from outpace.heads.top_tokens import top_tokens
from outpace.sampling import History, draw
from outpace.sampling.filters import distribution
from outpace.types import Sequence
from outpace.verification.coupled import choose
from outpace.verification.judge import draw_siblings

if TYPE_CHECKING:
    from jaxtyping import Float32, Int64

NUM_RACING = 32
"""Tokens among which the noise of a seeded request chooses a draft token."""


class ReducedDraws:
    """Draws over `token_ids`, a part of a target's `num_logits` tokens, ascending."""

    def __init__(
        self, token_ids: Int64[np.ndarray, " Vd"], num_logits: int, rng: np.random.Generator
    ) -> None:
        self._token_ids = token_ids
        self._num_logits = num_logits
        self._rng = rng
        self._weights = np.zeros(num_logits, np.float32)

    def chain(
        self, logits: Float32[np.ndarray, "k Vd"], seq: Sequence
    ) -> tuple[tuple[int, ...], tuple[np.ndarray, ...] | None]:
        """(tokens, q of each) of a chain whose positions' logits do not depend on the tokens before
        them. q, [num_logits], is what a token was drawn from; None where all were chosen: greedy
        requests take the argmax, and those with a seed the first to arrive in the race by which
        the target will choose (`coupled.choose`). Ends early where no token may come.
        """
        history = History(seq)
        params = seq.params
        if params.is_greedy and history.is_neutral:
            return tuple(self._token_ids[logits.argmax(axis=1)].tolist()), None
        token_ids: list[int] = []
        claims: list[np.ndarray] = []
        for row in logits:
            if not history.is_neutral:
                drawn = draw_siblings(self._spread(row, -np.inf), seq, token_ids, 1, self._rng)
                if not drawn:
                    break
                token, q = drawn[0]
            elif params.seed is not None:
                token, q = self._winner(row, seq, len(token_ids)), None
            else:
                law = distribution(row, params)
                token = int(self._token_ids[draw(law, float(self._rng.random()))])
                q = self._spread(law, 0.0)
            token_ids.append(token)
            if q is not None:
                claims.append(q)
        return tuple(token_ids), tuple(claims) if claims else None

    def _spread(
        self, values: Float32[np.ndarray, " Vd"], elsewhere: float
    ) -> Float32[np.ndarray, " V"]:
        """Values of the draft's tokens, by target id."""
        spread = np.full(self._num_logits, elsewhere, np.float32)
        spread[self._token_ids] = values
        return spread

    def _winner(self, row: Float32[np.ndarray, " Vd"], seq: Sequence, num_drafted: int) -> int:
        """Of the likeliest tokens the one that arrives first."""
        params, weights = seq.params, self._weights
        assert params.seed is not None
        best = top_tokens(row[None], NUM_RACING)[0]
        token_ids = self._token_ids[best]
        weights[token_ids] = distribution(row[best], params)
        winner = choose(weights, params.seed, seq.choice, seq.num_output + num_drafted)
        weights[token_ids] = 0
        return winner
